package main

import (
	"bytes"
	"encoding/json"
	"sync"
)

// hostStatus is a line that `zones publish --json` prints when the state of a host, or of the zone, changes.
type hostStatus struct {
	Host       string   `json:"host"`
	Zone       string   `json:"zone"`
	Programmed bool     `json:"programmed"`
	Left       bool     `json:"left"`
	Reason     string   `json:"reason"`
	Message    string   `json:"message"`
	Conflict   string   `json:"conflict"`
	Owners     []string `json:"owners"`
	Writes     uint64   `json:"writes"`
}

// statusLog keeps the last line about each host.
type statusLog struct {
	mu   sync.Mutex // guards the fields below
	rest []byte
	last map[string]hostStatus
	n    int // lines
}

// count is how many lines were printed.
func (l *statusLog) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n
}

func (l *statusLog) Write(data []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest = append(l.rest, data...)
	for {
		line, rest, ok := bytes.Cut(l.rest, []byte("\n"))
		if !ok {
			return len(data), nil
		}
		l.rest = rest
		var s hostStatus
		if json.Unmarshal(line, &s) != nil || s.Host+s.Zone == "" {
			continue
		}
		s.Host += s.Zone
		if l.last == nil {
			l.last = map[string]hostStatus{}
		}
		l.last[s.Host] = s
		l.n++
	}
}

// of is the last line about a host.
func (l *statusLog) of(host string) hostStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last[host]
}
