package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// footprint is what an agent and its node hold.
type footprint struct {
	PID         int
	Goroutines  int
	Descriptors int
	Memory      float64 // resident, in MiB
	node
}

// node is what stands on the node whichever agent runs.
type node struct {
	Rules    int // lines of the host's ruleset, sets' elements aside
	Elements int // of sets and maps of our table
	Tracked  int // connections of port 53
	Links    int
	Files    []string // in the agent's two folders
}

// What a footprint may grow by: pools that breathe, a cache whose entries differ in size, upstream connections.
const (
	spareGoroutines  = 20
	spareDescriptors = 12
	spareMemory      = 1.5 // times
	spareTracked     = 30
	spareElements    = 4 // a source or two whose note has not timed out
)

// leaks are what is more in b than in a, beyond what comes and goes.
func (a footprint) leaks(b footprint) []string {
	var out []string
	more := func(what string, before, after, spare int) {
		if after > before+spare {
			out = append(out, fmt.Sprintf("%s: %d, at first %d", what, after, before))
		}
	}
	more("goroutines", a.Goroutines, b.Goroutines, spareGoroutines)
	more("descriptors", a.Descriptors, b.Descriptors, spareDescriptors)
	more("lines of rules", a.Rules, b.Rules, 0)
	more("elements of sets", a.Elements, b.Elements, spareElements)
	more("tracked connections", a.Tracked, b.Tracked, spareTracked)
	more("links", a.Links, b.Links, 0)
	if b.Memory > a.Memory*spareMemory {
		out = append(out, fmt.Sprintf("memory: %.0f MiB, at first %.0f", b.Memory, a.Memory))
	}
	for _, f := range b.Files {
		if !slices.Contains(a.Files, f) {
			out = append(out, "file: "+f)
		}
	}
	return out
}

func sideBySide(a, b footprint) string {
	return fmt.Sprintf("goroutines %d → %d, descriptors %d → %d, memory %.0f → %.0f MiB, lines of rules %d → %d, elements %d → %d, tracked %d → %d, links %d → %d, files %d → %d",
		a.Goroutines, b.Goroutines, a.Descriptors, b.Descriptors, a.Memory, b.Memory, a.Rules, b.Rules, a.Elements, b.Elements,
		a.Tracked, b.Tracked, a.Links, b.Links, len(a.Files), len(b.Files))
}

// footprint looks at the agent and its node.
func (s *stand) footprint() footprint {
	s.t.Helper()
	pid := s.server.PID()
	descriptors, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	s.must(err)
	f := footprint{PID: pid, Descriptors: len(descriptors), Memory: memory(pid)}
	f.Goroutines, err = s.goroutines()
	s.must(err)
	f.Rules = strings.Count(s.node.Host.Run("nft", "-s", "-t", "list", "ruleset"), "\n")
	f.Elements, err = elements(s.node.Host.Run("nft", "-j", "list", "table", "inet", "neardns"))
	s.must(err)
	f.Tracked = len(testutil.Conntrack(s.node.Host))
	f.Links = strings.Count(s.node.Host.Run("ip", "-o", "link"), "\n")
	for _, dir := range []string{"state", "persist"} {
		s.must(filepath.WalkDir(s.path(dir), func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				f.Files = append(f.Files, strings.TrimPrefix(path, s.dir))
			}
			return err
		}))
	}
	return f
}

// elements counts what is in the sets and maps of a listing in JSON.
func elements(text string) (int, error) {
	var listing struct {
		Nftables []map[string]struct {
			Elem []json.RawMessage `json:"elem"`
		} `json:"nftables"`
	}
	if err := json.Unmarshal([]byte(text), &listing); err != nil {
		return 0, fmt.Errorf("read the listing of rules: %w", err)
	}
	n := 0
	for _, object := range listing.Nftables {
		n += len(object["set"].Elem) + len(object["map"].Elem)
	}
	return n, nil
}

// goroutines reads the agent's own count from its metrics.
func (s *stand) goroutines() (int, error) {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
		s.node.Host.Do(func() { conn, err = new(net.Dialer).DialContext(ctx, network, addr) })
		return conn, err
	}}}
	resp, err := client.Get("http://127.0.0.1:9253/metrics")
	if err != nil {
		return 0, fmt.Errorf("read metrics: %w", err)
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), "go_goroutines "); ok {
			return strconv.Atoi(value)
		}
	}
	return 0, fmt.Errorf("metrics do not tell go_goroutines")
}
