// Package zonefile publishes shared zones from a file, without a Kubernetes cluster. The file has the objects that the role zones reads
// from the API server (DNSZones, DNSRecords, DNSPolicies, Gateways and the Secrets of the zones' keys), in the form that
// `kubectl get -o yaml` prints. It is for bootstrap, for recovery, and for tests of the publishers.
//
// It guarantees that a file that Read refuses changes nothing, both at the start and when it is read again.
//
// If a zone does not accept a record, the record is reported by name, and the other records are published.
package zonefile

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
	"github.com/neardns/neardns/fleet/controller/zones"
	"github.com/neardns/neardns/fleet/zones/rfc2136"
)

// Defaults of values that a file may omit. In a cluster, the API server fills in the same defaults.
const (
	defaultTTL       = 60  // seconds
	defaultHeartbeat = 300 // seconds
	defaultRate      = 600 // messages per minute
)

// File is a parsed file.
type File struct {
	Zones   []v1alpha1.DNSZone
	Records []v1alpha1.DNSRecord
	Keys    map[string]rfc2136.Key // by name of the DNSZone
	Plan    *zones.Plan
	// Policies has what is decided about each DNSPolicy. The DNSRecords that they want are in Records.
	Policies map[zones.Key]*zones.Policy
}

// Read reads a file. The error lists all faults; those of a document have the number of its first line.
func Read(path string) (*File, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	f, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// Parse reads the text of a file.
func Parse(data []byte) (*File, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	codecs := serializer.NewCodecFactory(scheme, serializer.EnableStrict)
	r := reader{decoder: codecs.UniversalDeserializer(), secrets: map[string]corev1.Secret{},
		gateways: map[zones.Key]zones.Gateway{}, sources: map[zones.Reference]zones.Source{}}
	for _, d := range documents(data) {
		r.line = d.line
		r.document(d.text)
	}
	f := &File{Zones: r.zones, Records: r.records, Keys: map[string]rfc2136.Key{}}
	for i := range f.Zones {
		z := &f.Zones[i]
		key, err := r.key(z)
		if err != nil {
			r.faults = append(r.faults, err)
		}
		f.Keys[z.Name] = key
	}
	if len(r.faults) == 0 && len(f.Zones) == 0 {
		r.faults = append(r.faults, errors.New("there is no DNSZone in it"))
	}
	if err := errors.Join(r.faults...); err != nil {
		return nil, err
	}
	for _, record := range f.Records {
		from := record.Spec.AddressesFrom
		if from == nil {
			continue
		}
		name := zones.Reference{Namespace: record.Namespace, Kind: from.Kind, Name: string(from.Name)}
		if _, ok := r.sources[name]; !ok {
			problem := fmt.Sprintf("the file has no %s %s/%s; write the addresses", name.Kind, name.Namespace, name.Name)
			r.sources[name] = zones.Source{Problem: problem}
		}
	}
	f.decidePolicies(&r)
	f.Plan = zones.Decide(zones.Input{Zones: f.Zones, Records: f.Records, Sources: r.sources})
	return f, nil
}

// decidePolicies adds the DNSRecords of the file's DNSPolicies, in place of those that a cluster's controller made for them.
func (f *File) decidePolicies(r *reader) {
	for i := range r.policies {
		name := zones.Key{Namespace: r.policies[i].Namespace, Name: string(r.policies[i].Spec.TargetRef.Name)}
		if _, ok := r.gateways[name]; !ok {
			r.gateways[name] = zones.Gateway{Problem: fmt.Sprintf("the file has no Gateway %s", name)}
		}
	}
	f.Records = slices.DeleteFunc(f.Records, func(record v1alpha1.DNSRecord) bool {
		owner := zones.PolicyOf(&record)
		return owner != nil && slices.ContainsFunc(r.policies, func(p v1alpha1.DNSPolicy) bool {
			return p.Namespace == record.Namespace && p.Name == owner.Name
		})
	})
	f.Policies = zones.DecidePolicies(r.policies, r.gateways, zones.Input{Zones: f.Zones, Records: f.Records, Sources: r.sources})
	for _, p := range f.Policies {
		for _, w := range p.Wanted {
			f.Records = append(f.Records, *w.Record)
		}
	}
}

// part is one document of a YAML stream.
type part struct {
	line int // number of its first line
	text []byte
}

// documents splits a YAML stream at lines that consist of three dashes.
func documents(data []byte) []part {
	var out []part
	now := part{line: 1}
	for i, line := range bytes.SplitAfter(data, []byte("\n")) {
		if bytes.HasPrefix(line, []byte("---")) && len(bytes.TrimSpace(line)) == 3 {
			out = append(out, now)
			now = part{line: i + 2}
			continue
		}
		now.text = append(now.text, line...)
	}
	return append(out, now)
}

// reader collects a file's objects and faults.
type reader struct {
	decoder  runtime.Decoder
	line     int
	zones    []v1alpha1.DNSZone
	records  []v1alpha1.DNSRecord
	policies []v1alpha1.DNSPolicy
	gateways map[zones.Key]zones.Gateway
	sources  map[zones.Reference]zones.Source // addresses of the file's Gateways
	secrets  map[string]corev1.Secret         // by name
	faults   []error
}

func (r *reader) fault(format string, args ...any) {
	r.faults = append(r.faults, fmt.Errorf("line %d: "+format, append([]any{r.line}, args...)...))
}

func (r *reader) document(text []byte) {
	data, err := yaml.ToJSON(text)
	if err != nil {
		r.fault("%w", err)
		return
	}
	if string(bytes.TrimSpace(data)) == "null" {
		return // only comments
	}
	gateway := &unstructured.Unstructured{}
	if json.Unmarshal(data, gateway) == nil && gateway.GroupVersionKind() == zones.GatewayKind {
		name := zones.Key{Namespace: gateway.GetNamespace(), Name: gateway.GetName()}
		r.gateways[name], r.sources[zones.Reference{Namespace: name.Namespace, Kind: "Gateway", Name: name.Name}] = zones.ReadGateway(gateway)
		return
	}
	object, _, err := r.decoder.Decode(data, nil, nil)
	if err != nil {
		r.fault("%w", err)
		return
	}
	r.object(object)
}

func (r *reader) object(object runtime.Object) {
	switch o := object.(type) {
	case *v1alpha1.DNSZone:
		o.Spec.HeartbeatSeconds = cmp.Or(o.Spec.HeartbeatSeconds, defaultHeartbeat)
		o.Spec.MessagesPerMinute = cmp.Or(o.Spec.MessagesPerMinute, defaultRate)
		o.Spec.Removal = cmp.Or(o.Spec.Removal, v1alpha1.RemovalReport)
		if o.Spec.Primary == "" || o.Spec.Zone == "" {
			r.fault("DNSZone %s: spec.zone and spec.primary are needed", o.Name)
		}
		if slices.ContainsFunc(r.zones, func(z v1alpha1.DNSZone) bool { return z.Name == o.Name }) {
			r.fault("DNSZone %s is there twice", o.Name)
		}
		r.zones = append(r.zones, *o)
	case *v1alpha1.DNSRecord:
		o.Spec.TTL = cmp.Or(o.Spec.TTL, defaultTTL)
		o.Spec.Strategy = cmp.Or(o.Spec.Strategy, v1alpha1.StrategySimple)
		if slices.ContainsFunc(r.records, func(x v1alpha1.DNSRecord) bool { return x.Name == o.Name && x.Namespace == o.Namespace }) {
			r.fault("DNSRecord %s/%s is there twice", o.Namespace, o.Name)
		}
		r.records = append(r.records, *o)
	case *v1alpha1.DNSPolicy:
		o.Spec.TTL = cmp.Or(o.Spec.TTL, defaultTTL)
		o.Spec.Strategy = cmp.Or(o.Spec.Strategy, v1alpha1.StrategySimple)
		if slices.ContainsFunc(r.policies, func(x v1alpha1.DNSPolicy) bool { return x.Name == o.Name && x.Namespace == o.Namespace }) {
			r.fault("DNSPolicy %s/%s is there twice", o.Namespace, o.Name)
		}
		r.policies = append(r.policies, *o)
	case *corev1.Secret:
		if _, twice := r.secrets[o.Name]; twice {
			r.fault("Secret %s is there twice", o.Name)
		}
		for key, value := range o.StringData {
			if o.Data == nil {
				o.Data = map[string][]byte{}
			}
			o.Data[key] = []byte(value)
		}
		r.secrets[o.Name] = *o
	case *corev1.List:
		for _, item := range o.Items {
			r.document(item.Raw)
		}
	default:
		r.fault("%s has no place here: write DNSZone, DNSRecord, DNSPolicy, Gateway and Secret", object.GetObjectKind().GroupVersionKind().Kind)
	}
}

// key returns the TSIG key of a DNSZone from its Secret in the file. An error never contains the key's secret.
func (r *reader) key(z *v1alpha1.DNSZone) (rfc2136.Key, error) {
	secret, ok := r.secrets[z.Spec.TSIG.SecretName]
	if !ok {
		return rfc2136.Key{}, fmt.Errorf("DNSZone %s: spec.tsig: there is no Secret %q in the file", z.Name, z.Spec.TSIG.SecretName)
	}
	k, err := zones.ReadKey(secret.Data)
	if err != nil {
		return rfc2136.Key{}, fmt.Errorf("DNSZone %s: Secret %s: %w", z.Name, secret.Name, err)
	}
	return rfc2136.Key{Name: k.Name, Algorithm: k.Algorithm, Secret: k.Secret}, nil
}

// zone returns the DNSZone whose object name or zone name is name; "" stands for the only DNSZone of the file.
func (f *File) zone(name string) (*v1alpha1.DNSZone, error) {
	var all []string
	for i := range f.Zones {
		z := &f.Zones[i]
		if name == z.Name || name != "" && zones.Canonical(name) == zones.Canonical(z.Spec.Zone) || name == "" && len(f.Zones) == 1 {
			return z, nil
		}
		all = append(all, z.Name)
	}
	if name == "" {
		return nil, fmt.Errorf("the file has several zones: choose one with --zone: %s", strings.Join(all, ", "))
	}
	return nil, fmt.Errorf("the file has no zone %q but %s", name, strings.Join(all, ", "))
}
