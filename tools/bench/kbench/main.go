// Command kbench loads an HTTP->Kafka receiver and counts what a Kafka->HTTP
// dispatcher of CloudEvents delivers, whatever they are made of.
//
// Every subcommand prints JSON lines: load and wait say "begin" and "end" around what is measured
// (see tell), and the last line is the result. Times in it are named by their unit.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
)

type command struct {
	name, does string
	run        func(*flag.FlagSet, []string) error
}

var commands = []command{
	{"load", "POST CloudEvents to a receiver, as fast as it answers or at a fixed rate", runLoad},
	{"fill", "produce CloudEvents straight to a topic, as a receiver would have", runFill},
	{"sink", "be a subscriber that counts loss, duplicates, order and latency", runSink},
	{"wait", "wait until a sink has its events", runWait},
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

// tell says on a line of its own where what is measured begins and ends, and waits until who
// measures processes has looked at them: for a line, or the end, of the input.
func tell(moment string) {
	fmt.Printf("%q\n", moment)
	fmt.Scanln()
}

func round(v float64, digits int) float64 {
	scale := math.Pow10(digits)
	return math.Round(v*scale) / scale
}

func emit(fields map[string]any) error { return json.NewEncoder(os.Stdout).Encode(fields) }
