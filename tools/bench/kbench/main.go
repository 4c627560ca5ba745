// Command kbench loads an HTTP->Kafka receiver and counts what a Kafka->HTTP
// dispatcher of CloudEvents delivers, whatever they are made of. It measures the
// CPU and memory of any process trees while it does so, its own included.
//
// Every subcommand prints one JSON line. Times in it are named by their unit.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
)

type command struct {
	name, does string
	run        func(*flag.FlagSet, []string) error
}

var commands = []command{
	{"load", "POST CloudEvents to a receiver, as fast as it answers or at a fixed rate", runLoad},
	{"fill", "produce CloudEvents straight to a topic, as a receiver would have", runFill},
	{"sink", "be a subscriber that counts loss, duplicates, order and latency", runSink},
	{"wait", "wait until a sink has its events, measuring meanwhile", runWait},
}

func main() {
	if len(os.Args) > 1 {
		for _, c := range commands {
			if c.name == os.Args[1] {
				if err := c.run(flag.NewFlagSet("kbench "+c.name, flag.ExitOnError), os.Args[2:]); err != nil {
					fmt.Fprintf(os.Stderr, "kbench %s: %v\n", c.name, err)
					os.Exit(1)
				}
				return
			}
		}
	}
	fmt.Fprintln(os.Stderr, "usage: kbench COMMAND [flags]    (kbench COMMAND -h lists them)")
	for _, c := range commands {
		fmt.Fprintf(os.Stderr, "  %-6s %s\n", c.name, c.does)
	}
	os.Exit(2)
}

// processes is a repeatable name=pid[,pid...] flag.
type processes []struct{ name, pids string }

func (p *processes) String() string { return "" }

func (p *processes) Set(text string) error {
	name, pids, found := strings.Cut(text, "=")
	if !found {
		return fmt.Errorf("want name=pid, got %q", text)
	}
	*p = append(*p, struct{ name, pids string }{name, pids})
	return nil
}

func processesFlag(fs *flag.FlagSet) *processes {
	p := &processes{}
	fs.Var(p, "proc", "name=pid[,pid...] of processes to measure, descendants included; repeatable")
	return p
}

func emit(fields ...map[string]any) error {
	out := map[string]any{}
	for _, f := range fields {
		for k, v := range f {
			out[k] = v
		}
	}
	return json.NewEncoder(os.Stdout).Encode(out)
}
