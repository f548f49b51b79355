package main

import "github.com/neardns/neardns/pkg/testutil"

// metric is the sum of a metric of the agent's, over all labels that are not named.
func (s *stand) metric(name string) (float64, error) {
	page, err := s.node.Host.Get("http://127.0.0.1:9253/metrics")
	if err != nil {
		return 0, err
	}
	return testutil.Metric(page, name)
}
