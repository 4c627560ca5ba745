package main

import (
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

const tick = 100.0 // USER_HZ, clock ticks a second in /proc

type procStat struct {
	ppid int
	cpu  float64 // seconds, user and system
}

func readStat(pid string) (procStat, bool) {
	b, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return procStat{}, false
	}
	s := string(b)
	f := strings.Fields(s[strings.LastIndexByte(s, ')')+2:])
	ppid, _ := strconv.Atoi(f[1])
	user, _ := strconv.ParseFloat(f[11], 64)
	system, _ := strconv.ParseFloat(f[12], 64)
	return procStat{ppid, (user + system) / tick}, true
}

// trees returns the live processes of all roots and their descendants.
func trees(roots []int) map[int]procStat {
	all := map[int]procStat{}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		if st, ok := readStat(filepath.Base(d)); ok {
			pid, _ := strconv.Atoi(filepath.Base(d))
			all[pid] = st
		}
	}
	wanted := map[int]bool{}
	for _, r := range roots {
		wanted[r] = true
	}
	out := map[int]procStat{}
	for pid, st := range all {
		for p, hops := pid, 0; p > 1 && hops < 64; p, hops = all[p].ppid, hops+1 {
			if wanted[p] {
				out[pid] = st
				break
			}
		}
	}
	return out
}

func residentMB(procs map[int]procStat) (sum float64) {
	for pid := range procs {
		b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
		for _, line := range strings.Split(string(b), "\n") {
			if kb, found := strings.CutPrefix(line, "VmRSS:"); found {
				v, _ := strconv.ParseFloat(strings.Fields(kb)[0], 64)
				sum += v / 1024
			}
		}
	}
	return
}

// machineBusy is the CPU seconds that all processes of the machine have used.
func machineBusy() (busy float64) {
	b, _ := os.ReadFile("/proc/stat")
	f := strings.Fields(strings.SplitN(string(b), "\n", 2)[0])
	for i, v := range f[1:] {
		if i == 3 || i == 4 || i > 7 { // idle, iowait, guest
			continue
		}
		x, _ := strconv.ParseFloat(v, 64)
		busy += x / tick
	}
	return
}

// monitor measures named process trees between its start and stop.
type monitor struct {
	names []string
	roots [][]int
	cpu0  []map[int]procStat
	busy0 float64
	peak  []float64
	t0    time.Time
	quit  chan struct{}
	wg    sync.WaitGroup
}

func startMonitor(procs processes) *monitor {
	m := &monitor{t0: time.Now(), quit: make(chan struct{})}
	for _, p := range procs {
		roots := []int{}
		for _, text := range strings.Split(p.pids, ",") {
			if pid, err := strconv.Atoi(text); err == nil {
				roots = append(roots, pid)
			}
		}
		m.names, m.roots = append(m.names, p.name), append(m.roots, roots)
	}
	m.names, m.roots = append(m.names, "load"), append(m.roots, []int{os.Getpid()})
	m.peak = make([]float64, len(m.roots))
	for _, r := range m.roots {
		m.cpu0 = append(m.cpu0, trees(r))
	}
	m.busy0 = machineBusy()
	m.wg.Add(1)
	go func() {
		defer m.wg.Done()
		for {
			m.sample()
			select {
			case <-m.quit:
				return
			case <-time.After(500 * time.Millisecond):
			}
		}
	}()
	return m
}

func (m *monitor) sample() {
	for i, r := range m.roots {
		m.peak[i] = max(m.peak[i], residentMB(trees(r)))
	}
}

func perEvent(cpu map[string]float64, events int64) map[string]float64 {
	per := map[string]float64{}
	for name, seconds := range cpu {
		if events > 0 {
			per[name] = round(seconds*1e6/float64(events), 2)
		}
	}
	return per
}

// stop returns the measurement; cpu_us is CPU microseconds for each of events.
func (m *monitor) stop(events int64) map[string]any {
	wall := time.Since(m.t0).Seconds()
	busy, ours := machineBusy()-m.busy0, 0.0
	cpu, rss, peak := map[string]float64{}, map[string]float64{}, map[string]float64{}
	for i, name := range m.names {
		now, used := trees(m.roots[i]), 0.0
		for pid, st := range now {
			used += st.cpu - m.cpu0[i][pid].cpu
		}
		ours += used
		cpu[name], rss[name] = round(used, 2), round(residentMB(now), 1)
	}
	close(m.quit)
	m.wg.Wait()
	for i, name := range m.names {
		peak[name] = round(max(m.peak[i], rss[name]), 1)
	}
	return map[string]any{"wall_s": round(wall, 3), "cpu_s": cpu, "cpu_us": perEvent(cpu, events), "rss_mb": rss, "rss_peak_mb": peak,
		"machine_cpu_s": round(busy, 2), "other_cpu_s": round(busy-ours, 2)}
}

func round(v float64, digits int) float64 {
	scale := math.Pow10(digits)
	return math.Round(v*scale) / scale
}
