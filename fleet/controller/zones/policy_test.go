package zones

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
)

// policyOf makes a DNSPolicy. The digit at the end of its name is its age: 1 is older than 2.
func policyOf(name, gateway, section string) v1alpha1.DNSPolicy {
	var p v1alpha1.DNSPolicy
	p.Spec.PublishOptions = v1alpha1.PublishOptions{Strategy: "LoadBalanced", TTL: 30, Geo: "IE"}
	p.Spec.TargetRef = v1alpha1.GatewayRef{Name: v1alpha1.ObjectName(gateway), SectionName: v1alpha1.ObjectName(section)}
	p.Namespace, p.Name, p.UID = "shop", name, types.UID("uid of "+name)
	p.CreationTimestamp = metav1.NewTime(time.Unix(int64(name[len(name)-1]), 0))
	return p
}

// decided prints a DNSPolicy's part: its reason, the hosts of its DNSRecords, and listeners with the reason why they have none.
func decided(p *Policy) string {
	var out []string
	for _, w := range p.Wanted {
		out = append(out, w.Listener+"="+strings.TrimSuffix(string(w.Record.Spec.Host), ".shared.example"))
	}
	for _, u := range p.Unpublished {
		out = append(out, u.Listener+":"+u.Reason)
	}
	return strings.TrimSpace(p.Reason + " " + strings.Join(out, " "))
}

func TestDecidePolicies(t *testing.T) {
	own := v1alpha1.DNSRecord{Spec: v1alpha1.DNSRecordSpec{Host: "own.shared.example", Addresses: []v1alpha1.Address{"192.0.2.1"}}}
	own.Spec.Strategy, own.Spec.TTL = v1alpha1.StrategySimple, 60
	refused := own
	refused.Namespace, refused.Name, refused.Spec.Host = "shop", "refused", "api.shared.example"
	refused.Spec.Addresses = []v1alpha1.Address{"198.51.100.1"}
	own.Namespace, own.Name = "shop", "by-hand"
	leaving := v1alpha1.DNSRecord{Spec: v1alpha1.DNSRecordSpec{Host: "www.shared.example"}}
	leaving.Namespace, leaving.Name, leaving.DeletionTimestamp = "shop", "leaves", &metav1.Time{}
	elsewhere := v1alpha1.DNSRecord{Spec: v1alpha1.DNSRecordSpec{Host: "www.shared.example"}}
	elsewhere.Namespace, elsewhere.Name = "other", "www"
	first, second := policyOf("p1", "web", ""), policyOf("p2", "web", "")
	made := *recordOf(&first, "www.shared.example")
	www, api := Listener{"a", "www.shared.example"}, Listener{"b", "api.shared.example"}
	ending := policyOf("p1", "web", "")
	ending.DeletionTimestamp = &metav1.Time{}
	type policies []v1alpha1.DNSPolicy
	for name, c := range map[string]struct {
		policies  policies
		listeners []Listener
		problem   string
		want      string // each DNSPolicy's part
	}{
		"a listener":               {nil, []Listener{www}, "", "p1 Accepted a=www"},
		"none":                     {nil, nil, "", "p1 Accepted"},
		"no Gateway":               {nil, []Listener{www}, "there is no Gateway shop/web", "p1 TargetNotFound"},
		"HTTP and HTTPS of a host": {nil, []Listener{www, {"b", "www.shared.example"}}, "", "p1 Accepted a=www"},
		"a wildcard":               {nil, []Listener{{"a", "*.shared.example"}}, "", "p1 Accepted a=*"},
		"the zone itself":          {nil, []Listener{{"a", "shared.example"}}, "", "p1 Accepted a=shared.example"},
		"outside of zones":         {nil, []Listener{www, {"b", "www.other.example"}}, "", "p1 Accepted a=www b:NoZone"},
		"two without a host":       {nil, []Listener{{"a", ""}, {"b", ""}}, "", "p1 Accepted a:NoHost b:NoHost"},
		"a person's own":           {nil, []Listener{www, {"b", "own.shared.example"}}, "", "p1 Accepted a=www b:Conflicted"},
		"a person's own alone":     {nil, []Listener{{"b", "own.shared.example"}}, "", "p1 Conflicted b:Conflicted"},
		"a person's, refused":      {nil, []Listener{api}, "", "p1 Accepted b=api"},
		"two":                      {policies{second, first}, []Listener{www}, "", "p1 Accepted a=www; p2 Conflicted a:Conflicted"},
		"two of two Gateways": {policies{first, policyOf("p2", "api", "")}, []Listener{www}, "",
			"p1 Accepted a=www; p2 Accepted a=www"},
		"two, one for a section": {policies{second, policyOf("p1", "web", "b")}, []Listener{www, api}, "",
			"p1 Accepted b=api; p2 Accepted a=www b:Conflicted"},
		"no such section": {policies{policyOf("p1", "web", "z")}, []Listener{www}, "", "p1 TargetNotFound"},
		"being deleted":   {policies{ending, second}, []Listener{www}, "", "p1 Deleting; p2 Accepted a=www"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.policies == nil {
				c.policies = policies{first}
			}
			g := Gateway{Listeners: c.listeners, Problem: c.problem}
			gateways := map[Key]Gateway{{Namespace: "shop", Name: "web"}: g, {Namespace: "shop", Name: "api"}: g}
			var got []string
			in := Input{Zones: []v1alpha1.DNSZone{{Spec: v1alpha1.DNSZoneSpec{Zone: "shared.example", Publishers: []v1alpha1.Publisher{{
				Namespaces: []v1alpha1.NamespaceName{"shop"}, Hosts: []v1alpha1.HostName{"*.shared.example"},
				Targets: []v1alpha1.AddressRange{"192.0.2.0/24"},
			}}}}}, Records: []v1alpha1.DNSRecord{own, leaving, elsewhere, made, refused}}
			for key, p := range DecidePolicies(c.policies, gateways, in) {
				got = append(got, key.Name+" "+decided(p))
				for _, u := range p.Unpublished {
					if u.Message == "" || u.Record != "" {
						t.Errorf("%+v", u)
					}
				}
			}
			slices.Sort(got)
			if text := strings.Join(got, "; "); text != c.want {
				t.Errorf("%s, want %s", text, c.want)
			}
		})
	}
}

// A DNSPolicy's DNSRecord has the DNSPolicy's options and owner, and a name that depends only on the DNSPolicy and the host.
func TestRecordOf(t *testing.T) {
	p := policyOf("p1", "web", "")
	r := recordOf(&p, "*.shared.example")
	from := v1alpha1.AddressesFrom{Kind: "Gateway", Name: "web"}
	if s := r.Spec; s.Host != "*.shared.example" || *s.AddressesFrom != from || s.PublishOptions != p.Spec.PublishOptions {
		t.Errorf("%+v", s)
	}
	if o := PolicyOf(r); o == nil || o.UID != p.UID || !*o.BlockOwnerDeletion || r.Namespace != "shop" {
		t.Errorf("%+v", r.ObjectMeta)
	}
	names := map[string]bool{}
	for _, host := range []string{"*.shared.example", "any.shared.example", "wildcard.shared.example", "shared.example"} {
		names[recordOf(&p, host).Name] = true
	}
	if len(names) != 4 || !names[r.Name] || !strings.HasPrefix(r.Name, "p1-") {
		t.Errorf("%v", names)
	}
	r.OwnerReferences[0].Kind = "NodeDNS"
	if PolicyOf(r) != nil {
		t.Error("a DNSRecord of another owner is taken for a DNSPolicy's")
	}
}

// A DNSPolicy's status is that of its DNSRecords: how many are published, which are not and why, and the worst of the other conditions.
func TestPolicyStatus(t *testing.T) {
	p := policyOf("p1", "web", "")
	good := recordConditions("Accepted=True Accepted", "Programmed=True Programmed", "Healthy=Unknown NotChecked",
		"UnresolvedConflictDiscovered=False NoConflict")
	refused := recordConditions("Accepted=False NotAllowed", "Programmed=False NotAccepted")
	old := []metav1.Condition{{Type: "Programmed", Status: "True", ObservedGeneration: 1}}
	unreachable := recordConditions("Programmed=False Unreachable")
	unknown := recordConditions("Programmed=Unknown Unreachable")
	healthy := recordConditions("Programmed=True Programmed", "Healthy=True Healthy")
	sick := recordConditions("Programmed=True Programmed", "Healthy=False AllSick")
	conflict := recordConditions("Programmed=False Conflict", "UnresolvedConflictDiscovered=True ConflictingTTL")
	for name, c := range map[string]struct {
		a, b    []metav1.Condition // of the DNSRecords of two hosts; nil: there is none yet
		problem string
		want    string
	}{
		"all":                      {good, good, "", "2/2 Accepted Programmed NotChecked NoConflict"},
		"one is new":               {good, nil, "", "1/2 Accepted Writing NotChecked NoConflict b:Writing"},
		"one has an old status":    {good, old, "", "1/2 Accepted Writing NotChecked NoConflict b:Writing"},
		"one is not allowed":       {refused, good, "", "1/2 Accepted NotAllowed NotChecked NoConflict a:NotAllowed"},
		"one could not be written": {good, nil, "NotWritten", "1/2 Accepted NotWritten NotChecked NoConflict b:NotWritten"},
		"unreachable":              {unreachable, unknown, "", "0/2 Accepted Unreachable NotChecked NoConflict a:Unreachable b:Unreachable"},
		"healthy":                  {healthy, good, "", "2/2 Accepted Programmed Healthy NoConflict"},
		"one unhealthy":            {sick, healthy, "", "2/2 Accepted Programmed AllSick NoConflict"},
		"a conflict":               {conflict, good, "", "1/2 Accepted Conflict NotChecked ConflictingTTL a:Conflict"},
	} {
		t.Run(name, func(t *testing.T) {
			d := &Policy{Verdict: Verdict{Reason: Accepted}}
			d.Wanted = []Wanted{{"a", recordOf(&p, "a.shared.example")}, {"b", recordOf(&p, "b.shared.example")}}
			records, problems := map[Key]*v1alpha1.DNSRecord{}, map[Key]Verdict{}
			for i, conditions := range [][]metav1.Condition{c.a, c.b} {
				r := d.Wanted[i].Record.DeepCopy()
				key := Key{Namespace: r.Namespace, Name: r.Name}
				if r.Generation, r.Status.Conditions = 2, conditions; conditions != nil {
					records[key] = r
				} else if c.problem != "" {
					problems[key] = Verdict{c.problem, "the API server refused it"}
				}
			}
			s := d.Status(records, problems)
			got := fmt.Sprintf("%d/%d", s.Programmed, s.Records)
			for _, c := range s.Conditions {
				got += " " + c.Reason
			}
			for _, u := range s.Unpublished {
				got += " " + u.Listener + ":" + u.Reason
				if u.Record == "" || u.Message == "" {
					t.Errorf("%+v", u)
				}
			}
			if got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
			if full := s.Programmed == s.Records; (s.Conditions[1].Status == metav1.ConditionTrue) != full {
				t.Errorf("%+v", s.Conditions[1])
			}
		})
	}
}

// Without a DNSRecord a DNSPolicy is not Programmed.
func TestPolicyStatusEmpty(t *testing.T) {
	unnamed := []v1alpha1.UnpublishedHost{{Listener: "a", Reason: NoHost}}
	none := (&Policy{Verdict: Verdict{Reason: Accepted}, Unpublished: unnamed}).Status(nil, nil)
	if c := none.Conditions[1]; c.Status != metav1.ConditionFalse || c.Reason != NoHosts || len(none.Unpublished) != 1 {
		t.Errorf("%+v", none)
	}
	lost := &Policy{Verdict: Verdict{Conflicted, "p0 has it"}}
	lost.Unpublished = []v1alpha1.UnpublishedHost{{Listener: "a", Reason: Conflicted, Message: "p0 has it"}}
	var reasons []string
	for _, c := range lost.Status(nil, nil).Conditions {
		reasons = append(reasons, string(c.Status)+" "+c.Reason)
	}
	if !slices.Equal(reasons, []string{"False Conflicted", "False NotAccepted", "Unknown NotChecked", "True Conflicted"}) {
		t.Errorf("%q", reasons)
	}
}

// recordConditions are a DNSRecord's conditions of its generation 2, each as TYPE=STATUS REASON.
func recordConditions(texts ...string) (out []metav1.Condition) {
	for _, text := range texts {
		kind, rest, _ := strings.Cut(text, "=")
		status, reason, _ := strings.Cut(rest, " ")
		c := condition(kind, true, reason, "of the record")
		c.Status, c.ObservedGeneration = metav1.ConditionStatus(status), 2
		out = append(out, c)
	}
	return out
}
