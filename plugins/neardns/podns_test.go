package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/overlay"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/resolvconf"
	"github.com/neardns/neardns/pkg/sandbox"
	"github.com/neardns/neardns/pkg/testutil"
)

const kubeletText = "search shop.svc.cluster.local svc.cluster.local\nnameserver 10.96.0.10\noptions ndots:5\n"

func kubeletSettings(options ...string) resolvconf.Settings {
	return resolvconf.Settings{Nameservers: []string{"10.96.0.10"}, Searches: []string{"shop.svc.cluster.local", "svc.cluster.local"}, Options: options}
}

// The method and the pod file's DNS part depend on what the plugin knows at ADD.
func TestPlanSettings(t *testing.T) {
	const params = `neardns.io/dns-params":"options: [ndots:1]`
	given := `"runtimeConfig":{"dns":{"Servers":["10.96.0.10"],"Searches":["shop.svc.cluster.local","svc.cluster.local"],"Options":["ndots:5"]},"io.kubernetes.cri.pod-annotations":{"` + params + `"}}`
	inFile := settingsFacts{Sandbox: sandbox.File{Path: "/s/c1/resolv.conf", Text: []byte(kubeletText)}}
	noFile := settingsFacts{SandboxErr: fs.ErrNotExist}
	byCRI, byPodman := podArgs{Name: "web-0", Namespace: "shop"}, podArgs{Name: "web-0"}
	for name, tc := range map[string]struct {
		keys    string
		pod     podArgs
		sharing bool
		facts   settingsFacts
		want    podfile.DNS
		asked   string // the nameservers that decide about steering
	}{
		"nothing wanted": {`"x/y":1`, byCRI, false, inFile, podfile.DNS{State: podfile.AsGiven, Settings: kubeletSettings("ndots:5"),
			Path: "/s/c1/resolv.conf"}, "10.96.0.10"},
		"nothing known": {`"x/y":1`, byCRI, false, noFile, podfile.DNS{State: podfile.AsGiven}, ""},
		"file": {given, byCRI, false, inFile, podfile.DNS{State: podfile.Overlaid, Method: podfile.MethodFile,
			Settings: kubeletSettings("ndots:1"), Path: "/s/c1/resolv.conf"}, "10.96.0.10"},
		"no file yet": {given, byCRI, false, noFile, podfile.DNS{State: podfile.Waiting, Settings: kubeletSettings("ndots:5"),
			Reason: "the runtime makes the pod's resolv.conf after ADD"}, "10.96.0.10 10.96.0.10"},
		"file unreadable": {given, byCRI, false, settingsFacts{SandboxErr: errors.New("no way")},
			podfile.DNS{State: podfile.Failed, Method: podfile.MethodFile, Settings: kubeletSettings("ndots:5"), Reason: "no way"}, "10.96.0.10"},
		"file not written": {given, byCRI, false, settingsFacts{Sandbox: inFile.Sandbox, EditErr: errors.New("disk full")},
			podfile.DNS{State: podfile.Failed, Method: podfile.MethodFile, Settings: kubeletSettings("ndots:5"), Path: "/s/c1/resolv.conf",
				Reason: "disk full"}, "10.96.0.10"},
		"off": {given + `,"resolvConf":"off"`, byCRI, false, noFile,
			podfile.DNS{State: podfile.AsGiven, Settings: kubeletSettings("ndots:5"), Reason: "resolvConf is off in the configuration"}, "10.96.0.10"},
		"the host's network": {given, byCRI, true, noFile, podfile.DNS{State: podfile.AsGiven, Settings: kubeletSettings("ndots:5"),
			Reason: "the pod shares the host's network namespace"}, "10.96.0.10"},
		"a result": {`"dns":{"options":["ndots:1"]},"prevResult":{"dns":{"nameservers":["10.96.0.10"]}}`, byPodman, false, noFile,
			podfile.DNS{State: podfile.HandedOn, Method: podfile.MethodResult, Settings: resolvconf.Settings{Nameservers: []string{"10.96.0.10"},
				Options: []string{"ndots:1"}}}, ""},
		"other nameservers": {`"dns":{"policy":"None","nameservers":["9.9.9.9"]}`, byCRI, false, inFile,
			podfile.DNS{State: podfile.Overlaid, Method: podfile.MethodFile, Settings: resolvconf.Settings{Nameservers: []string{"9.9.9.9"}},
				Path: "/s/c1/resolv.conf"}, "9.9.9.9"},
		"back to the cluster": {`"dns":{"policy":"ClusterFirst"}`, byCRI, false,
			settingsFacts{Sandbox: sandbox.File{Path: "/r", Text: []byte("nameserver 9.9.9.9\n")},
				Node: resolvconf.Node{ClusterDNS: addrs("10.96.0.10"), ClusterDomain: "c.l"}},
			podfile.DNS{State: podfile.Overlaid, Method: podfile.MethodFile, Settings: resolvconf.Settings{Nameservers: []string{"10.96.0.10"},
				Searches: []string{"shop.svc.c.l", "svc.c.l", "c.l"}, Options: []string{"ndots:5"}}, Path: "/r"}, "10.96.0.10"},
	} {
		t.Run(name, func(t *testing.T) {
			c := mustConf(t, withKeys(tc.keys))
			in := call{ContainerID: "c1", Pod: tc.pod, SharesHost: tc.sharing}
			got := planSettings(c, in, c.Rules.For(keyDNS, in.Pod.Namespace, c.Annotations), tc.facts)
			if !strings.HasPrefix(got.DNS.Reason, tc.want.Reason) || tc.want.Reason == "" && got.DNS.Reason != "" {
				t.Errorf("reason %q, want %q", got.DNS.Reason, tc.want.Reason)
			}
			testutil.Equal(t, "DNS", tc.want, got.DNS, cmpopts.IgnoreFields(podfile.DNS{}, "Reason", "Overlay", "Notes"), cmpopts.EquateEmpty())
			if asked := strings.Join(got.nameservers, " "); asked != tc.asked {
				t.Errorf("steering is decided on %q, want %q", asked, tc.asked)
			}
			if wants := got.DNS.State != podfile.AsGiven; wants != (got.DNS.Overlay != nil) {
				t.Errorf("state %s with overlay %v", got.DNS.State, got.DNS.Overlay)
			}
		})
	}
}

func TestResultWithDNS(t *testing.T) {
	for prev, want := range map[string]string{
		`{"cniVersion":"1.0.0","ips":[ ]}`: `{"cniVersion":"1.0.0","dns":{"nameservers":["10.96.0.10"],"options":["ndots:1"],"search":["a.b"]},"ips":[]}`,
		`{"dns":{"domain":"x","nameservers":["1.1.1.1"],"search":["old"],"options":["o"]},"k":12345678901234567890}`: `{"dns":{"domain":"x","nameservers":["10.96.0.10"],"options":["ndots:1"],"search":["a.b"]},"k":12345678901234567890}`,
	} {
		got, err := withDNS([]byte(prev), resolvconf.Settings{Nameservers: []string{"10.96.0.10"}, Searches: []string{"a.b"}, Options: []string{"ndots:1"}})
		if err != nil || string(got) != want {
			t.Errorf("%s, %v\nwant %s", got, err, want)
		}
	}
	if _, err := withDNS([]byte(`{"dns":7}`), resolvconf.Settings{}); err == nil {
		t.Error("a number for dns is taken")
	}
}

// sandboxFile makes a pod's resolv.conf at the configured path of the runtime.
func sandboxFile(t *testing.T, id, text string) (pattern, path string) {
	t.Helper()
	dir := t.TempDir()
	path = filepath.Join(dir, id, "resolv.conf")
	testutil.Must(t, os.Mkdir(filepath.Dir(path), 0o711))
	testutil.Must(t, os.WriteFile(path, []byte(text), 0o644))
	return filepath.Join(dir, "{id}", "resolv.conf"), path
}

func TestOverlayInTheSandboxsFile(t *testing.T) {
	r, _, pod := ptpNode(t, testutil.IPv4)
	pattern, path := sandboxFile(t, "c1", "# by the runtime\n"+kubeletText)
	var before unix.Stat_t
	testutil.Must(t, unix.Stat(path, &before))
	conf := object{
		"resolvConfPaths": []string{pattern}, "dns": object{"options": []string{"timeout:3"},
			"namespaces": object{"shop": object{"options": []string{"ndots:2", "edns0"}}}},
		"runtimeConfig": object{keyAnnotations: object{overlay.AnnotationParams: "search:\n- pod.example\n", overlay.AnnotationKernelHits: "true",
			overlay.AnnotationSteer: "perhaps"}},
	}
	add := addRequest("c1", pod, conf)
	const want = "# by the runtime\nsearch shop.svc.cluster.local svc.cluster.local pod.example\nnameserver 10.96.0.10\noptions ndots:2 timeout:3 " +
		"edns0\n"
	first := r.must(add)
	for range 2 { // a second ADD changes nothing
		testutil.WantFile(t, path, want)
		f := r.file("c1")
		if f.DNS.State != podfile.Overlaid || f.DNS.Method != podfile.MethodFile || f.DNS.Path != path || f.KernelHits == nil || !*f.KernelHits {
			t.Errorf("pod file %+v", f.DNS)
		}
		ignored := []podfile.Ignored{{What: "annotation neardns.io/steer", Why: `"perhaps" is neither true nor false`}}
		testutil.Equal(t, "ignored", ignored, f.Ignored)
		r.wantDecision("c1", podfile.Steered, "")
		r.must(add.with("CHECK"))
		testutil.Equal(t, "result", first.Stdout, r.must(add).Stdout)
	}
	var after unix.Stat_t
	if err := unix.Stat(path, &after); err != nil || after.Ino != before.Ino || after.Mode != before.Mode {
		t.Errorf("%v: inode %d then %d, mode %o then %o", err, before.Ino, after.Ino, before.Mode, after.Mode)
	}
	for _, word := range []string{"msg=\"a setting wanted for the pod has no effect\"", "annotation neardns.io/steer", "neither true nor false", "dns=overlaid method=file"} {
		if !strings.Contains(first.Stderr, word) {
			t.Errorf("the log does not say %q:\n%s", word, first.Stderr)
		}
	}
	// A foreign change of the file is drift, and so is its removal.
	testutil.Must(t, os.WriteFile(path, []byte(kubeletText), 0o644))
	r.fails(add.with("CHECK"), codeDrift, path)
	testutil.Must(t, os.Remove(path))
	r.fails(add.with("CHECK"), codeDrift)
	r.must(add.with("DEL"))
}

// Whether a pod is steered depends on its nameservers after the overlay.
func TestSteeringIsDecidedAfterTheOverlay(t *testing.T) {
	r, _, pod := ptpNode(t, testutil.IPv4)
	for id, tc := range map[string]struct {
		text string
		dns  object
		want podfile.State
	}{
		"away": {kubeletText, object{"policy": "None", "nameservers": []string{"9.9.9.9"}}, podfile.LeftAlone},
		"home": {"nameserver 9.9.9.9\n", object{"policy": "ClusterFirst"}, podfile.Steered},
		"more": {"nameserver 9.9.9.9\n", object{"nameservers": []string{"10.96.0.10"}}, podfile.Steered},
	} {
		pattern, _ := sandboxFile(t, id, tc.text)
		servers := strings.Fields(strings.TrimPrefix(tc.text, "search shop.svc.cluster.local svc.cluster.local\n"))[1:2]
		r.must(addRequest(id, pod, object{"resolvConfPaths": []string{pattern}, "dns": tc.dns, "runtimeConfig": object{"dns": object{"servers": servers}}}))
		r.wantDecision(id, tc.want, "")
		r.must(addRequest(id, pod, nil).with("DEL"))
	}
}

// An overlay that cannot be applied does not stop the pod's start, and each cause is logged.
func TestOverlayThatCannotBeHad(t *testing.T) {
	r, _, pod := ptpNode(t, testutil.IPv4)
	given := object{"dns": object{"servers": []string{"10.96.0.10"}, "searches": []string{"a.b"}, "options": []string{"ndots:5"}}}
	folder, _ := sandboxFile(t, "other", "")
	pipe, path := sandboxFile(t, "pipe", "")
	testutil.Must(t, errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600)))
	for id, tc := range map[string]struct {
		conf   object
		state  podfile.DNSState
		reason string
		log    string
	}{
		"waits": {object{"resolvConfPaths": []string{folder}, "dns": object{"options": []string{"ndots:1"}}}, podfile.Waiting, "through NRI",
			"lacks the wanted DNS settings"},
		"pipe": {object{"resolvConfPaths": []string{pipe}, "dns": object{"options": []string{"ndots:1"}}}, podfile.Failed, "is no regular file",
			"lacks the wanted DNS settings"},
		"off": {object{"resolvConf": "off", "dns": object{"options": []string{"ndots:1"}}}, podfile.AsGiven, "resolvConf is off", "lacks the wanted DNS settings"},
		"nohost": {object{"hostResolvConf": "/nonexistent/resolv.conf", "dns": object{"policy": "Default"}}, podfile.AsGiven, "none of the wanted settings",
			"policy Default starts from the node's resolv.conf"},
		"empty": {object{"dns": object{"policy": "None"}}, podfile.AsGiven, "none of the wanted settings", "it leaves the pod without any"},
	} {
		tc.conf["runtimeConfig"] = given
		out := r.must(addRequest(id, pod, tc.conf))
		f := r.file(id)
		if f.DNS.State != tc.state || !strings.Contains(f.DNS.Reason, tc.reason) || !slices.Contains(f.DNS.Settings.Options, "ndots:5") {
			t.Errorf("%s: %+v", id, f.DNS)
		}
		if !strings.Contains(out.Stderr, tc.log) {
			t.Errorf("%s: the log does not say %q:\n%s", id, tc.log, out.Stderr)
		}
		r.wantDecision(id, podfile.Steered, "")
		r.must(addRequest(id, pod, tc.conf).with("CHECK"))
		r.must(addRequest(id, pod, tc.conf).with("DEL"))
	}
}

// Without a kubelet the settings go into the result, over what an earlier plugin put there.
func TestOverlayInTheResult(t *testing.T) {
	r, _, pod := ptpNode(t, testutil.IPv4)
	add := addRequest("c1", pod, object{"dns": object{"searches": []string{"more.example"}, "options": []string{"ndots:1"}}})
	add.Args = "IgnoreUnknown=1;K8S_POD_NAME=web-0" // as Podman has it
	var got struct {
		DNS struct {
			Nameservers, Search, Options []string
		}
		IPs []any
	}
	testutil.Must(t, json.Unmarshal([]byte(r.must(add).Stdout), &got))
	testutil.Equal(t, "DNS", [][]string{{"10.96.0.10"}, {"svc.cluster.local", "more.example"}, {"ndots:1"}},
		[][]string{got.DNS.Nameservers, got.DNS.Search, got.DNS.Options})
	if len(got.IPs) == 0 {
		t.Error("the addresses are gone")
	}
	if f := r.file("c1"); f.DNS.State != podfile.HandedOn || f.DNS.Method != podfile.MethodResult {
		t.Errorf("%+v", f.DNS)
	}
	r.must(add.with("CHECK"))
}

func TestPodDNSFaults(t *testing.T) {
	for keys, want := range map[string]string{
		`"dns":{"options":[{"name":"ndots"}],"namespaces":{"a":{"options":[{"name":"b"}]}}}`: "dns.options[0]: an object: write it as",
		`"dns":{"nameservers":"local","namespaces":{"a":{"nameservers":"local"}}}`:           "dns.nameservers: a string: write it as [\"local\"] here",
		`"resolvConf":"on"`:              `resolvConf: "on" is not known: write one of auto, off`,
		`"resolvConfPaths":[]`:           "resolvConfPaths: names no path",
		`"resolvConfPaths":["/a/b"]`:     `resolvConfPaths[0]: "/a/b" is not a path from the root with {id}`,
		`"hostResolvConf":"resolv.conf"`: `hostResolvConf: "resolv.conf" is not an absolute path`,
	} {
		_, err := parseConf(withKeys(keys))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "namespaces.a") {
			t.Errorf("%s: %v", keys, err)
		}
	}
}

// A list kept by hand may have keys of an earlier or later release: they stop no pod, and the others count.
func TestPodDNSUnknownKeys(t *testing.T) {
	for key, want := range map[string]string{`"domain":"x"`: "dns.domain: unknown key", `"limits":"kubernetes"`: "dns.limits: unknown key",
		`"searchCompletion":true`: "dns.searchCompletion: unknown key"} {
		conf, err := parseConf(withKeys(`"dns":{"options":["ndots:2"],` + key + `}`))
		if err != nil || len(conf.Unknown) != 1 || !strings.Contains(conf.Unknown[0].Error(), want) || conf.Rules.IsZero() {
			t.Errorf("%s: %v, unknown %v, %+v", key, err, conf.Unknown, conf.Rules)
		}
	}
}

// The annotation in docs/pod-dns.md is valid.
func TestReadmeAnnotation(t *testing.T) {
	_, block, ok := strings.Cut(testutil.ReadFile(t, "../../docs/pod-dns.md"), "neardns.io/dns-params: |\n")
	block, _, end := strings.Cut(block, "```")
	if !ok || !end {
		t.Fatal("no such example")
	}
	wanted := overlay.Rules{}.For(keyDNS, "shop", map[string]string{overlay.AnnotationParams: block})
	all, laid, ignored := wanted.Apply(resolvconf.Node{}, nil, "shop", kubeletSettings("ndots:5"))
	if all == nil || !slices.Contains(laid.Options, "ndots:1") || len(laid.Searches) != 3 || len(ignored) > 0 {
		t.Errorf("%+v, ignored %v", laid.Settings, ignored)
	}
}
