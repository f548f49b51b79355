package testutil

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
)

// Get reads a web page as a client in the namespace does. An answer other than 200 is an error with the page's text.
func (n *NetNS) Get(url string) (page string, err error) {
	dial := func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
		failed := n.enter(func() { conn, err = new(net.Dialer).DialContext(ctx, network, addr) })
		return conn, errors.Join(failed, err)
	}
	client := http.Client{Timeout: Patience(), Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
	resp, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, resp.Status, text)
	}
	return string(text), err
}

// Metric adds up the series of a metric, on a page in Prometheus's text format. A name with labels stands for one series. A page without
// the metric is an error.
func Metric(page, name string) (sum float64, err error) {
	there := false
	for line := range strings.Lines(page) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), name)
		if !ok || rest == "" || rest[0] != ' ' && rest[0] != '{' {
			continue
		}
		v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		if err != nil {
			return 0, fmt.Errorf("read %s: %w", name, err)
		}
		sum, there = sum+v, true
	}
	if !there {
		return 0, fmt.Errorf("no metric %s", name)
	}
	return sum, nil
}
