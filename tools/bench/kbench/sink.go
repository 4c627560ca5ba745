package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
)

// arrivals is what one path received. Ids are numbers from 0; those that are equal
// modulo lanes belong to one key or partition, and must come in rising order.
type arrivals struct {
	total, distinct, disorder int64
	seen                      []uint64
	last                      []int64
}

type sink struct {
	sync.Mutex
	lanes       int64
	paths       map[string]*arrivals
	first, last int64
	latency     []uint32
	badID       int64
	flooded     atomic.Int64
}

func (s *sink) reset(lanes int64) {
	s.paths, s.latency, s.first, s.last, s.badID = map[string]*arrivals{}, s.latency[:0], 0, 0, 0
	if lanes > 0 {
		s.lanes = lanes
	}
}

func (s *sink) record(path string, id, sent, now int64) {
	s.Lock()
	defer s.Unlock()
	a := s.paths[path]
	if a == nil {
		a = &arrivals{last: make([]int64, s.lanes)}
		for i := range a.last {
			a.last[i] = -1
		}
		s.paths[path] = a
	}
	if s.first == 0 {
		s.first = now
	}
	s.last = now
	a.total++
	if sent > 0 && len(s.latency) < 4_000_000 {
		s.latency = append(s.latency, uint32(max(0, now-sent)/1000))
	}
	if id < 0 {
		s.badID++
		return
	}
	for int(id/64) >= len(a.seen) {
		a.seen = append(a.seen, 0)
	}
	if bit := uint64(1) << (id % 64); a.seen[id/64]&bit == 0 {
		a.seen[id/64] |= bit
		a.distinct++
		if lane := id % s.lanes; a.last[lane] > id {
			a.disorder++
		} else {
			a.last[lane] = id
		}
	}
}

type sinkStats struct {
	Total      int64              `json:"total"`
	Distinct   int64              `json:"distinct"`
	Duplicates int64              `json:"duplicates"`
	Disorder   int64              `json:"out_of_order"`
	BadID      int64              `json:"bad_id"`
	Paths      int                `json:"paths"`
	First      int64              `json:"first_ns"`
	Last       int64              `json:"last_ns"`
	Flooded    int64              `json:"flooded"`
	Latency    map[string]float64 `json:"latency_ms,omitempty"`
}

func (s *sink) stats(latency bool) sinkStats {
	s.Lock()
	defer s.Unlock()
	o := sinkStats{First: s.first, Last: s.last, Paths: len(s.paths), BadID: s.badID, Flooded: s.flooded.Load()}
	for _, a := range s.paths {
		o.Total, o.Distinct, o.Disorder = o.Total+a.total, o.Distinct+a.distinct, o.Disorder+a.disorder
	}
	o.Duplicates = o.Total - o.Distinct - o.BadID
	if latency {
		o.Latency = summary(append([]uint32(nil), s.latency...))
		s.latency = s.latency[:0]
	}
	return o
}

func runSink(fs *flag.FlagSet, args []string) error {
	addr := fs.String("addr", "127.0.0.1:18090", "listen address; any path takes events, each counted by itself; /slow... takes 5 s, /broken... answers 500, /flooded... is counted apart")
	lanes := fs.Int64("lanes", 10, "ids equal modulo this are in one key or partition, for the order")
	fs.Parse(args)
	s := &sink{}
	s.reset(*lanes)
	srv := &fasthttp.Server{NoDefaultServerHeader: true, NoDefaultDate: true, MaxRequestBodySize: 8 << 20, Handler: func(c *fasthttp.RequestCtx) {
		switch path := string(c.Path()); path {
		case "/_stats": // ?latency adds the percentiles since they were last asked for
			json.NewEncoder(c).Encode(s.stats(c.QueryArgs().Has("latency")))
		case "/_reset":
			s.Lock()
			s.reset(int64(c.QueryArgs().GetUintOrZero("lanes")))
			s.Unlock()
		default:
			// Paths that aren't what they should be: their events count for nothing.
			switch {
			case strings.HasPrefix(path, "/slow"):
				time.Sleep(5 * time.Second)
				c.SetStatusCode(202)
				return
			case strings.HasPrefix(path, "/broken"):
				c.SetStatusCode(500)
				return
			case strings.HasPrefix(path, "/flooded"):
				s.flooded.Add(1)
				c.SetStatusCode(202)
				return
			}
			now := time.Now().UnixNano()
			id, err := strconv.ParseInt(string(c.Request.Header.Peek("ce-id")), 10, 64)
			if err != nil {
				id = -1
			}
			sent, _ := strconv.ParseInt(string(c.Request.Header.Peek("ce-kbsent")), 10, 64)
			s.record(path, id, sent, now)
			c.SetStatusCode(202)
		}
	}}
	return srv.ListenAndServe(*addr)
}

func getStats(base string, latency bool) (st sinkStats, err error) {
	u := strings.TrimRight(base, "/") + "/_stats"
	if latency {
		u += "?latency"
	}
	r, err := http.Get(u)
	if err != nil {
		return st, err
	}
	defer r.Body.Close()
	return st, json.NewDecoder(r.Body).Decode(&st)
}

func runWait(fs *flag.FlagSet, args []string) error {
	base := fs.String("sink", "http://127.0.0.1:18090", "base URL of a sink")
	from := fs.Int64("from", 0, "measure from so many distinct events on")
	count := fs.Int64("count", 0, "distinct events to wait for")
	timeout := fs.Duration("timeout", 2*time.Minute, "give up after")
	fs.Parse(args)
	started := time.Now()
	until := func(wanted int64) (st sinkStats, err error) {
		for {
			if st, err = getStats(*base, false); err != nil || st.Distinct >= wanted || time.Since(started) > *timeout {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	before, err := until(*from)
	if err != nil {
		return err
	}
	tell("begin")
	t0 := time.Now()
	after, err := until(*count)
	if err != nil {
		return err
	}
	measured, wall := after.Total-before.Total, time.Since(t0).Seconds()
	tell("end")
	if after, err = getStats(*base, true); err != nil {
		return err
	}
	if after.Distinct < *count {
		return fmt.Errorf("%d of %d events came within %s", after.Distinct, *count, *timeout)
	}
	return emit(map[string]any{"sink": after, "measured": measured, "per_s": round(float64(measured)/wall, 1)})
}
