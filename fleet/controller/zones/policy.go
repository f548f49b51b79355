package zones

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
	"github.com/neardns/neardns/fleet/zones/zone"
)

// Reasons of a DNSPolicy's conditions and of its unpublished hosts, in addition to those of DNSRecords.
const (
	TargetNotFound = "TargetNotFound" // the Gateway or its listener does not exist
	Conflicted     = "Conflicted"     // an older DNSPolicy, or a DNSRecord that a person made, has the host
	NoHost         = "NoHost"         // the listener has no host name
	NoHosts        = "NoHosts"        // no listener has a host that the DNSPolicy can publish
	NotWritten     = "NotWritten"     // the DNSRecord could not be created or changed
)

// Policy is what is decided about one DNSPolicy.
type Policy struct {
	Verdict
	Wanted []Wanted
	// Unpublished are the listeners whose hosts get no DNSRecord, each with the reason.
	Unpublished []v1alpha1.UnpublishedHost
}

// Wanted is a DNSRecord that a DNSPolicy wants, and the listener that has the host.
type Wanted struct {
	Listener string
	Record   *v1alpha1.DNSRecord
}

// DecidePolicies returns the DNSRecords that each DNSPolicy wants. gateways must have an entry for each targetRef. If several DNSPolicies
// target listeners of one Gateway with the same host, only the oldest one gets a DNSRecord for it. None gets one if the namespace has an
// accepted DNSRecord for the host that a person made.
func DecidePolicies(policies []v1alpha1.DNSPolicy, gateways map[Key]Gateway, in Input) map[Key]*Policy {
	origins := map[string]*v1alpha1.DNSZone{}
	for i := range in.Zones {
		origins[Canonical(in.Zones[i].Spec.Zone)] = &in.Zones[i]
	}
	in.Zones = slices.Clone(in.Zones)
	in.Records = slices.DeleteFunc(slices.Clone(in.Records), func(r v1alpha1.DNSRecord) bool { return PolicyOf(&r) != nil })
	alone := Decide(in).Records // without DNSPolicies' DNSRecords, which may be older and contradict a person's
	type place struct{ namespace, gateway, host string }
	taken := map[place]string{} // without a gateway, the DNSRecord that a person made for the host; with one, the DNSPolicy that has it
	for i := range in.Records {
		if r := &in.Records[i]; alone[Key{Namespace: r.Namespace, Name: r.Name}].Good() {
			taken[place{r.Namespace, "", Canonical(r.Spec.Host)}] = r.Name
		}
	}
	slices.SortFunc(policies, func(a, b v1alpha1.DNSPolicy) int {
		return older(a.CreationTimestamp.Time, b.CreationTimestamp.Time, a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	out := map[Key]*Policy{}
	for i := range policies {
		p, ref := &policies[i], &policies[i].Spec.TargetRef
		gateway := gateways[Key{Namespace: p.Namespace, Name: string(ref.Name)}]
		d := &Policy{Verdict: targetOf(p, gateway)}
		out[Key{Namespace: p.Namespace, Name: p.Name}] = d
		if !d.Good() {
			continue
		}
		seen, conflict := map[string]bool{}, ""
		for _, l := range gateway.Listeners {
			host := Canonical(l.Host)
			if ref.SectionName != "" && l.Name != string(ref.SectionName) || l.Host != "" && seen[host] {
				continue
			}
			seen[host] = true
			u := v1alpha1.UnpublishedHost{Listener: l.Name, Host: l.Host}
			at := place{p.Namespace, string(ref.Name), host}
			record, other := taken[place{p.Namespace, "", host}], taken[at]
			switch {
			case l.Host == "":
				u.Reason, u.Message = NoHost, "the listener has no hostname"
			case zoneOf(origins, host, "", nil) == nil:
				u.Reason, u.Message = NoZone, fmt.Sprintf("no DNSZone has the host %s; there are %s", l.Host, list(origins))
			case record != "":
				u.Reason, u.Message = Conflicted, fmt.Sprintf("DNSRecord %s has the host %s; if you delete it, the DNSPolicy has it", record, l.Host)
			case other != "":
				u.Reason, u.Message = Conflicted, fmt.Sprintf("DNSPolicy %s, which is older, has the host %s of the same Gateway", other, l.Host)
			default:
				taken[at] = p.Name
				d.Wanted = append(d.Wanted, Wanted{l.Name, recordOf(p, l.Host)})
				continue
			}
			if u.Reason == Conflicted {
				conflict = u.Message
			}
			d.Unpublished = append(d.Unpublished, u)
		}
		if len(d.Wanted) == 0 && conflict != "" {
			d.Verdict = Verdict{Conflicted, conflict}
		}
	}
	return out
}

// targetOf returns the verdict about a DNSPolicy and its Gateway.
func targetOf(p *v1alpha1.DNSPolicy, g Gateway) Verdict {
	section := string(p.Spec.TargetRef.SectionName)
	switch {
	case p.DeletionTimestamp != nil:
		return Verdict{Deleting, "the DNSPolicy is being deleted"}
	case g.Unread:
		return Verdict{NotReadable, "spec.targetRef: " + g.Problem}
	case g.Problem != "":
		return Verdict{TargetNotFound, "spec.targetRef: " + g.Problem}
	case section != "" && !slices.ContainsFunc(g.Listeners, func(l Listener) bool { return l.Name == section }):
		return verdict(TargetNotFound, "spec.targetRef.sectionName: Gateway %s has no listener %s", p.Spec.TargetRef.Name, section)
	}
	return verdict(Accepted, "publishes the hosts of Gateway %s", p.Spec.TargetRef.Name)
}

// recordOf returns a DNSPolicy's DNSRecord for a host. The DNSRecord's name depends only on the DNSPolicy and the host, so that no host
// gets two.
func recordOf(p *v1alpha1.DNSPolicy, host string) *v1alpha1.DNSRecord {
	owner := metav1.NewControllerRef(p, v1alpha1.GroupVersion.WithKind("DNSPolicy"))
	name := p.Name + "-" + zone.ClusterID(host)
	return &v1alpha1.DNSRecord{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: name, OwnerReferences: []metav1.OwnerReference{*owner}},
		Spec: v1alpha1.DNSRecordSpec{
			Host: v1alpha1.HostName(host), PublishOptions: p.Spec.PublishOptions,
			AddressesFrom: &v1alpha1.AddressesFrom{Kind: "Gateway", Name: p.Spec.TargetRef.Name},
		},
	}
}

// PolicyOf returns a DNSRecord's reference to the DNSPolicy for which it was made. It returns nil if there is none: a person made it.
func PolicyOf(r *v1alpha1.DNSRecord) *metav1.OwnerReference {
	if o := metav1.GetControllerOf(r); o != nil && o.Kind == "DNSPolicy" && o.APIVersion == v1alpha1.GroupVersion.String() {
		return o
	}
	return nil
}

// Status returns the DNSPolicy's status, which collects the conditions of its DNSRecords. records are the DNSRecords as they are now, and
// problems are the reasons why some could not be written, both by the DNSRecord's key.
func (p *Policy) Status(records map[Key]*v1alpha1.DNSRecord, problems map[Key]Verdict) v1alpha1.DNSPolicyStatus {
	out := v1alpha1.DNSPolicyStatus{Records: int32(len(p.Wanted))}
	checked := healthy(nil, nil)
	conflict := condition(ConditionConflict, false, NoConflict, "nothing conflicts with a host of the DNSPolicy")
	for _, u := range p.Unpublished {
		if u.Reason == Conflicted {
			conflict = condition(ConditionConflict, true, Conflicted, u.Message)
		}
	}
	for _, w := range p.Wanted {
		key := Key{Namespace: w.Record.Namespace, Name: w.Record.Name}
		find := func(kind string) metav1.Condition {
			if r := records[key]; r != nil {
				if c := meta.FindStatusCondition(r.Status.Conditions, kind); c != nil && c.ObservedGeneration == r.Generation {
					return *c
				}
			}
			return metav1.Condition{Status: metav1.ConditionUnknown, Reason: Writing, Message: "the controller has not looked at the DNSRecord yet"}
		}
		host := string(w.Record.Spec.Host)
		state := find(ConditionProgrammed)
		if accepted := find(ConditionAccepted); accepted.Status == metav1.ConditionFalse {
			state = accepted
		}
		if v, ok := problems[key]; ok {
			state = condition("", false, v.Reason, v.Message)
		}
		if state.Status == metav1.ConditionTrue {
			out.Programmed++
		} else {
			out.Unpublished = append(out.Unpublished,
				v1alpha1.UnpublishedHost{Listener: w.Listener, Host: host, Record: key.Name, Reason: state.Reason, Message: state.Message})
		}
		if c := find(ConditionHealthy); c.Status == metav1.ConditionFalse || c.Status == metav1.ConditionTrue && checked.Reason == NotChecked {
			checked = condition(ConditionHealthy, c.Status == metav1.ConditionTrue, c.Reason, host+": "+c.Message)
		}
		if c := find(ConditionConflict); c.Status == metav1.ConditionTrue {
			conflict = condition(ConditionConflict, true, c.Reason, host+": "+c.Message)
		}
	}
	programmed := condition(ConditionProgrammed, true, Programmed, fmt.Sprintf("the zone has all %d hosts", out.Records))
	switch {
	case p.Reason == NotReadable:
		programmed = condition(ConditionProgrammed, false, NotReadable, staysPublished+p.Message)
	case !p.Good():
		programmed = condition(ConditionProgrammed, false, NotAccepted, "nothing is published: "+p.Message)
	case out.Records == 0:
		programmed = condition(ConditionProgrammed, false, NoHosts, "no listener has a host in a DNSZone; status.unpublished has the reasons")
	case out.Programmed < out.Records:
		first := out.Unpublished[0]
		programmed = condition(ConditionProgrammed, false, first.Reason,
			fmt.Sprintf("the zone has %d of %d hosts; %s: %s", out.Programmed, out.Records, first.Host, first.Message))
	}
	out.Unpublished = append(out.Unpublished, p.Unpublished...)
	out.Conditions = []metav1.Condition{condition(ConditionAccepted, p.Good(), p.Reason, p.Message), programmed, checked, conflict}
	return out
}
