package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// metric is the sum of a metric of the agent's, over all labels that are not named.
func (s *stand) metric(name string) (float64, error) {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
		s.node.Host.Do(func() { conn, err = new(net.Dialer).DialContext(ctx, network, addr) })
		return conn, err
	}}}
	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://127.0.0.1:9253/metrics", nil)
	if err != nil {
		return 0, err
	}
	answer, err := client.Do(request)
	if err != nil {
		return 0, fmt.Errorf("read metrics: %w", err)
	}
	defer answer.Body.Close()
	return sumOf(answer.Body, name)
}

// sumOf adds up the values of a metric in Prometheus's text format.
func sumOf(text io.Reader, name string) (sum float64, err error) {
	there := false
	lines := bufio.NewScanner(text)
	for lines.Scan() {
		rest, ok := strings.CutPrefix(lines.Text(), name)
		if !ok || rest == "" || rest[0] != ' ' && rest[0] != '{' {
			continue
		}
		v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		if err != nil {
			return 0, fmt.Errorf("read %s: %w", name, err)
		}
		sum, there = sum+v, true
	}
	if err := lines.Err(); err != nil {
		return 0, fmt.Errorf("read metrics: %w", err)
	}
	if !there {
		return 0, fmt.Errorf("no metric %s", name)
	}
	return sum, nil
}
