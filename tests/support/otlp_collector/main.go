// The OpenTelemetry collector's OTLP receiver, by HTTP and gRPC, for the tests: each batch of spans
// that it takes is a line of OTLP's JSON on standard output.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/receiver/receivertest"
)

func main() {
	factory := otlpreceiver.NewFactory()
	config := factory.CreateDefaultConfig()
	must(confmap.NewFromStringMap(map[string]any{"protocols": map[string]any{
		"http": map[string]any{"endpoint": os.Args[1]},
		"grpc": map[string]any{"endpoint": os.Args[2]},
	}}).Unmarshal(config))
	marshaler := ptrace.JSONMarshaler{}
	sink, err := consumer.NewTraces(func(_ context.Context, spans ptrace.Traces) error {
		line, err := marshaler.MarshalTraces(spans)
		if err == nil {
			_, err = fmt.Printf("%s\n", line)
		}
		return err
	})
	must(err)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	receiver, err := factory.CreateTraces(ctx, receivertest.NewNopSettings(factory.Type()), config, sink)
	must(err)
	must(receiver.Start(ctx, componenttest.NewNopHost()))
	<-ctx.Done()
	must(receiver.Shutdown(context.Background()))
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
