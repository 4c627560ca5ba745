package main

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/tls"
	"flag"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	idDigits   = 12
	sentDigits = 19
	keyDigits  = 6
)

// body is a JSON document of exactly size bytes.
func body(size int) []byte {
	head, tail := `{"msg":"`, `"}`
	return []byte(head + strings.Repeat("x", max(0, size-len(head)-len(tail))) + tail)
}

// digits are where those of one event start in a request; key 0: no key.
type digits struct{ id, sent, key int }

// request is a POST of one CloudEvent or a batch, made once and patched in place for each time.
type request struct {
	bytes  []byte
	events []digits
}

// newRequest makes a POST of one event, or of a batch where that is more than 0.
func newRequest(u *url.URL, host, typ string, size int, keyed, structured bool, batch int) *request {
	var event bytes.Buffer
	from := 0
	at := func(mark string) int { return from + bytes.Index(event.Bytes()[from:], []byte(mark)) + len(mark) }
	head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: %s\r\n", u.RequestURI(), cmp.Or(host, u.Host))
	zeros := func(n int) string { return strings.Repeat("0", n) }
	data := body(size)
	if structured || batch > 0 {
		key := ""
		if keyed {
			key = `"partitionkey":"k` + zeros(keyDigits) + `",`
		}
		document := `{"specversion":"1.0","source":"/kbench","type":"` + typ + `","time":"2026-01-01T00:00:00Z",` + key +
			`"id":"` + zeros(idDigits) + `","kbsent":"` + zeros(sentDigits) + `","datacontenttype":"application/json","data":` + string(data) + "}"
		mediaType, content := "application/cloudevents+json", document
		if batch > 0 {
			mediaType = "application/cloudevents-batch+json"
			content = "[" + strings.TrimSuffix(strings.Repeat(document+",", batch), ",") + "]"
		}
		fmt.Fprintf(&event, "%sContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", head, mediaType, len(content), content)
		r := &request{bytes: event.Bytes()}
		for range max(1, batch) {
			d := digits{id: at(`"id":"`), sent: at(`"kbsent":"`)}
			if keyed {
				d.key = at(`"partitionkey":"k`)
			}
			r.events = append(r.events, d)
			from = d.sent
		}
		return r
	}
	fmt.Fprintf(&event, "%sContent-Type: application/json\r\nContent-Length: %d\r\nce-specversion: 1.0\r\nce-source: /kbench\r\n"+
		"ce-type: %s\r\nce-time: 2026-01-01T00:00:00Z\r\n", head, len(data), typ)
	if keyed {
		event.WriteString("ce-partitionkey: k" + zeros(keyDigits) + "\r\n")
	}
	fmt.Fprintf(&event, "ce-id: %s\r\nce-kbsent: %s\r\n\r\n", zeros(idDigits), zeros(sentDigits))
	event.Write(data)
	d := digits{id: at("ce-id: "), sent: at("ce-kbsent: ")}
	if keyed {
		d.key = at("ce-partitionkey: k")
	}
	return &request{bytes: event.Bytes(), events: []digits{d}}
}

// patch numbers the request's events from id on.
func (r *request) patch(id, nanoseconds, keys int64) {
	for _, d := range r.events {
		putDigits(r.bytes[d.id:d.id+idDigits], id)
		putDigits(r.bytes[d.sent:d.sent+sentDigits], nanoseconds)
		if d.key > 0 {
			putDigits(r.bytes[d.key:d.key+keyDigits], id%keys)
		}
		id++
	}
}

func putDigits(b []byte, v int64) {
	for i := len(b) - 1; i >= 0; i-- {
		b[i] = byte('0' + v%10)
		v /= 10
	}
}

// readResponse reads one HTTP/1.1 response, and throws its body away.
func readResponse(r *bufio.Reader) (status int, closed bool, err error) {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return 0, true, err
	}
	if len(line) < 12 {
		return 0, true, fmt.Errorf("short status line %q", line)
	}
	if status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return 0, true, err
	}
	length, chunked := 0, false
	for {
		if line, err = r.ReadSlice('\n'); err != nil {
			return status, true, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			break
		}
		k, v, _ := bytes.Cut(line, []byte(":"))
		v = bytes.TrimSpace(v)
		switch {
		case bytes.EqualFold(k, []byte("content-length")):
			length, _ = strconv.Atoi(string(v))
		case bytes.EqualFold(k, []byte("transfer-encoding")):
			chunked = bytes.EqualFold(v, []byte("chunked"))
		case bytes.EqualFold(k, []byte("connection")):
			closed = bytes.EqualFold(v, []byte("close"))
		}
	}
	for chunked {
		if line, err = r.ReadSlice('\n'); err != nil {
			return status, true, err
		}
		n, e := strconv.ParseInt(string(bytes.TrimSpace(line)), 16, 32)
		if e != nil {
			return status, true, e
		}
		if _, err = r.Discard(int(n) + 2); err != nil || n == 0 {
			return status, closed, err
		}
	}
	if length > 0 {
		_, err = r.Discard(length)
	}
	return status, closed, err
}

// client is one connection, opened again when it was closed, or for each request.
type client struct {
	addr string
	tls  bool // whoever answers is believed
	each bool
	conn net.Conn
	r    *bufio.Reader
}

func (c *client) do(request []byte, timeout time.Duration) (int, error) {
	if c.conn == nil {
		conn, err := net.DialTimeout("tcp", c.addr, timeout)
		if err != nil {
			return 0, err
		}
		if c.tls {
			conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
		}
		c.conn, c.r = conn, bufio.NewReaderSize(conn, 8192)
	}
	c.conn.SetDeadline(time.Now().Add(timeout))
	_, err := c.conn.Write(request)
	status, closed := 0, true
	if err == nil {
		status, closed, err = readResponse(c.r)
	}
	if closed || err != nil || c.each {
		c.conn.Close()
		c.conn = nil
	}
	return status, err
}

type outcomes struct {
	latency []uint32 // microseconds
	status  map[string]int64
	errors  map[string]int64
	ok      int64
}

func runLoad(fs *flag.FlagSet, args []string) error {
	targets := fs.String("url", "", "receiver URL; several, by comma, share the connections")
	host := fs.String("host", "", "Host header, where it isn't the URL's")
	conns := fs.Int("c", 64, "connections, each with one request under way")
	warm := fs.Duration("warm", 0, "send so long before measuring")
	dur := fs.Duration("d", 10*time.Second, "measure so long")
	n := fs.Int64("n", 0, "stop after so many requests, or at SIGTERM, and count all of them (0: by duration)")
	rate := fs.Float64("rate", 0, "requests a second, latency from the scheduled time (0: as fast as answered)")
	size := fs.Int("size", 1024, "bytes of data")
	typ := fs.String("type", "com.example.bench", "ce-type")
	keys := fs.Int64("keys", 0, "partition keys, used in turn (0: none)")
	structured := fs.Bool("structured", false, "structured instead of binary mode")
	batch := fs.Int("batch", 0, "events in each request, as a JSON batch (0: one event, no batch)")
	each := fs.Bool("new", false, "a new connection for each request")
	firstID := fs.Int64("first-id", 0, "first ce-id")
	timeout := fs.Duration("timeout", 30*time.Second, "for one request")
	fs.Parse(args)
	urls := []*url.URL{}
	for _, text := range strings.Split(*targets, ",") {
		u, err := url.Parse(text)
		if err != nil || u.Host == "" {
			return fmt.Errorf("bad -url %q", text)
		}
		urls = append(urls, u)
	}
	stopped := make(chan os.Signal, 1)
	signal.Notify(stopped, syscall.SIGTERM, os.Interrupt)
	var over atomic.Bool
	go func() {
		<-stopped
		over.Store(true)
	}()
	results := make([]outcomes, *conns)
	var seq atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	from := start.Add(*warm)
	end := from.Add(*dur)
	for i := range results {
		wg.Add(1)
		go func() {
			defer wg.Done()
			u := urls[i%len(urls)]
			res := outcomes{status: map[string]int64{}, errors: map[string]int64{}}
			req, c := newRequest(u, *host, *typ, *size, *keys > 0, *structured, *batch), &client{addr: u.Host, tls: u.Scheme == "https", each: *each}
			for {
				k := seq.Add(1) - 1
				if *n > 0 && k >= *n || over.Load() {
					break
				}
				at := time.Now()
				if *rate > 0 {
					at = start.Add(time.Duration(float64(k) / *rate * 1e9))
				}
				if *n == 0 && !at.Before(end) {
					break
				}
				time.Sleep(time.Until(at))
				req.patch(*firstID+k*int64(len(req.events)), time.Now().UnixNano(), max(1, *keys))
				status, err := c.do(req.bytes, *timeout)
				if err != nil && err != io.EOF || status == 0 {
					res.errors[fmt.Sprint(err)]++
					time.Sleep(time.Millisecond)
					continue
				}
				if done := time.Now(); *n > 0 || done.After(from) && done.Before(end) {
					res.status[strconv.Itoa(status)]++
					res.latency = append(res.latency, uint32(done.Sub(at).Microseconds()))
					if status/100 == 2 {
						res.ok++
					}
				}
			}
			if c.conn != nil {
				c.conn.Close()
			}
			results[i] = res
		}()
	}
	time.Sleep(time.Until(from))
	measured := time.Now()
	tell("begin")
	if *n > 0 {
		wg.Wait()
	} else {
		time.Sleep(time.Until(end)) // what is measured ends before the last answers come in
	}
	wall := time.Since(measured).Seconds()
	tell("end")
	wg.Wait()
	total := outcomes{status: map[string]int64{}, errors: map[string]int64{}}
	for _, r := range results {
		total.latency, total.ok = append(total.latency, r.latency...), total.ok+r.ok
		for k, v := range r.status {
			total.status[k] += v
		}
		for k, v := range r.errors {
			total.errors[k] += v
		}
	}
	events := total.ok * int64(max(1, *batch))
	return emit(map[string]any{"measured": events, "connections": *conns, "size": *size, "rate": *rate, "ok": total.ok,
		"events": events,
		"status": total.status, "errors": total.errors, "per_s": round(float64(events)/wall, 1), "latency_ms": summary(total.latency)})
}

// summary gives percentiles, in milliseconds, of latencies in microseconds.
func summary(us []uint32) map[string]float64 {
	if len(us) == 0 {
		return map[string]float64{}
	}
	slices.Sort(us)
	at := func(q float64) float64 { return round(float64(us[min(len(us)-1, int(q*float64(len(us))))])/1000, 3) }
	return map[string]float64{"p50": at(.5), "p90": at(.9), "p99": at(.99), "p999": at(.999), "max": at(1)}
}
