package nodecache

import "github.com/prometheus/client_golang/prometheus"

// Kinds of setup errors: the values of the label of node-cache's metric.
const (
	FaultIptables       = "iptables"        // the rules of the switch, or in iptables' filter table, could not be written
	FaultIptablesLock   = "iptables_lock"   // the rules could not be written, because another program held iptables' lock
	FaultInterfaceAdd   = "interface_add"   // the interface is missing and could not be made
	FaultInterfaceCheck = "interface_check" // the interface or its addresses could not be checked or repaired
	FaultConfigmap      = "configmap"       // the template or the kube-dns ConfigMap cannot be read, or has a fault
)

// Faults counts setup errors in a metric with node-cache's name, so that dashboards and alerts for node-cache continue to work. Any
// goroutine may use it.
type Faults struct{ *prometheus.CounterVec }

// NewFaults makes the counters, at zero.
func NewFaults() *Faults {
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "coredns", Subsystem: "nodecache", Name: "setup_errors_total",
		Help: "The number of errors during periodic network setup for node-cache",
	}, []string{"errortype"})
	for _, kind := range []string{FaultIptables, FaultIptablesLock, FaultInterfaceAdd, FaultInterfaceCheck, FaultConfigmap} {
		vec.WithLabelValues(kind)
	}
	return &Faults{vec}
}

// Count counts err as one of the kinds, unless it is nil, and returns it.
func (f *Faults) Count(kind string, err error) error {
	if err != nil {
		f.WithLabelValues(kind).Inc()
	}
	return err
}
