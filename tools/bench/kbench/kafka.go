package main

import (
	"context"
	"flag"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func runFill(fs *flag.FlagSet, args []string) error {
	boot := fs.String("bootstrap", "127.0.0.1:9092", "Kafka")
	topic := fs.String("topic", "", "topic, which exists")
	partitions := fs.Int64("partitions", 10, "partitions of the topic; event id goes to id % partitions")
	keys := fs.Int64("keys", 0, "record keys, key id % keys; a multiple of partitions, or 1 for all into partition 0 (0: none)")
	n := fs.Int64("n", 200_000, "events")
	firstID := fs.Int64("first-id", 0, "first ce-id")
	size := fs.Int("size", 1024, "bytes of data")
	typ := fs.String("type", "com.example.bench", "ce-type")
	types := fs.Int64("types", 0, "different types: .N behind the type, N = (id / partitions) % types (0: one)")
	fs.Parse(args)
	if *keys > 1 && *keys%*partitions != 0 {
		return fmt.Errorf("%d keys over %d partitions: want a multiple", *keys, *partitions)
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(*boot), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(5*time.Millisecond), kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.MaxBufferedRecords(20_000),
		// Batches as a receiver writes them: larger ones defeat a Java consumer's max.partition.fetch.bytes.
		kgo.ProducerBatchMaxBytes(int32(max(16_384, *size+1024))))
	if err != nil {
		return err
	}
	defer cl.Close()
	var failed atomic.Int64
	var first atomic.Value
	data, start := body(*size), time.Now()
	for id := *firstID; id < *firstID+*n; id++ {
		ofType := *typ
		if *types > 0 {
			ofType += fmt.Sprintf(".%d", (id / *partitions)%*types)
		}
		h := func(k, v string) kgo.RecordHeader { return kgo.RecordHeader{Key: k, Value: []byte(v)} }
		record := &kgo.Record{Topic: *topic, Partition: int32(id % *partitions), Value: data, Headers: []kgo.RecordHeader{
			h("content-type", "application/json"), h("ce_specversion", "1.0"), h("ce_id", fmt.Sprintf("%0*d", idDigits, id)),
			h("ce_source", "/kbench"), h("ce_type", ofType), h("ce_time", "2026-01-01T00:00:00Z"),
			h("ce_kbsent", strconv.FormatInt(time.Now().UnixNano(), 10))}}
		if *keys > 0 {
			key := fmt.Sprintf("k%0*d", keyDigits, id%*keys)
			record.Key, record.Headers = []byte(key), append(record.Headers, h("ce_partitionkey", key))
		}
		if *keys == 1 {
			record.Partition = 0
		}
		cl.Produce(context.Background(), record, func(_ *kgo.Record, err error) {
			if err != nil {
				failed.Add(1)
				first.CompareAndSwap(nil, err.Error())
			}
		})
	}
	if err := cl.Flush(context.Background()); err != nil {
		return err
	}
	if failed.Load() > 0 {
		return fmt.Errorf("%d of %d not produced: %v", failed.Load(), *n, first.Load())
	}
	return emit(map[string]any{"filled": *n, "topic": *topic, "per_s": round(float64(*n)/time.Since(start).Seconds(), 0)})
}
