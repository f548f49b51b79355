package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/neardns/neardns/integration/compat"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestSourcesList(t *testing.T) {
	sites := "Debian http://mirror/debian/\nDebian http://mirror/debian/\nDebian-Security http://mirror/debian-security/\nNodeSource https://other/\n"
	const keys = "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] "
	want := keys + "http://mirror/debian/ bullseye main\n" + keys + "http://mirror/debian-security/ bullseye-security main\n"
	if got := sourcesList(sites, "bullseye"); got != want {
		t.Errorf("got:\n%swant:\n%s", got, want)
	}
}

func TestFindKernel(t *testing.T) {
	dir := t.TempDir()
	if _, err := findKernel(dir); err == nil {
		t.Error("a kernel in an empty folder")
	}
	for name, text := range map[string]string{"package": "linux-image-6.1.0-56-amd64_6.1.192-2_amd64.deb\n", "boot/vmlinuz-6.1.0-56-amd64": ""} {
		file := filepath.Join(dir, name)
		testutil.Must(t, os.MkdirAll(filepath.Dir(file), 0o755))
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	k, err := findKernel(dir)
	if err != nil || k.release != "6.1.0-56-amd64" || k.version != "6.1.192-2" {
		t.Errorf("%+v, %v", k, err)
	}
}

// The guest can write nothing of this machine and reach no network.
func TestMachineIsShutIn(t *testing.T) {
	for name, a := range architectures() {
		m := machine{options: options{accel: "tcg", cpus: 2, memory: 512}, arch: a, kernel: kernel{dir: "/k", release: "6.1"}, root: "/", module: "/m", initramfs: "/i", console: "/c"}
		args := strings.Join(m.args(), " ")
		for _, want := range []string{"-nodefaults", "-accel tcg", "-m 512", "-no-reboot", "-kernel /k/boot/vmlinuz-6.1", "console=" + a.console + " ", "-cpu " + a.cpu + " "} {
			if !strings.Contains(args, want) {
				t.Errorf("%s: %q is not among %s", name, want, args)
			}
		}
		if n := strings.Count(args, "readonly=on,multidevs=remap"); n != 2 || strings.Count(args, "-virtfs") != n {
			t.Errorf("%s: %d folders cannot be written, want root and module: %s", name, n, args)
		}
		for _, not := range []string{"-net", "-drive", "-hda", "virtio-blk"} {
			if strings.Contains(args, not+" ") {
				t.Errorf("%s: %q is among %s", name, not, args)
			}
		}
	}
	if _, err := findArch("riscv64"); err == nil || !strings.Contains(err.Error(), "[amd64 arm64]") {
		t.Errorf("an architecture that is not known: %v", err)
	}
}

func TestCPUModel(t *testing.T) {
	for o, want := range map[options]string{
		{accel: "tcg,thread=multi"}: "plain", {accel: "kvm"}: "max", {accel: "tcg", cpu: "Nehalem"}: "Nehalem",
	} {
		if got := (machine{options: o, arch: arch{cpu: "plain"}}).cpuModel(); got != want {
			t.Errorf("%+v: %s, want %s", o, got, want)
		}
	}
}

// Every job of every kernel names a package that has tests, and a pattern that can be read; one of TestMatrix picks cells, and all of them
// together each cell of the kernel in the compatibility table.
func TestPlan(t *testing.T) {
	table, err := compat.Load("nodes")
	testutil.Must(t, err)
	kinds := []options{{kernel: "6.1", arch: "arm64"}}
	for _, kernel := range series() {
		kinds = append(kinds, options{kernel: kernel, arch: "amd64"})
	}
	for _, o := range kinds {
		jobs, err := plan(o)
		if err != nil || len(jobs) < 3 {
			t.Fatalf("%+v: %v, %v", o, jobs, err)
		}
		cells := map[string]bool{} // whether a job picks the cell
		for _, row := range table.Rows {
			for _, families := range table.Columns {
				if row[2] == o.kernel {
					cells[strings.TrimPrefix(row[0]+"/", "nftables/")+families+"/"+row[1]] = false
				}
			}
		}
		for _, j := range jobs {
			if selection, ok := strings.CutPrefix(j.Run, "^TestMatrix$/"); ok && !pick(selection, cells) {
				t.Errorf("%+v: %s picks no cell", o, j.Run)
			}
			if files, _ := filepath.Glob(filepath.Join("../..", j.Package, "*_test.go")); len(files) == 0 {
				t.Errorf("%s has no tests", j.Package)
			}
			if _, err := regexp.Compile(j.Run); err != nil {
				t.Error(err)
			}
		}
		for cell, picked := range cells {
			if o.arch == "amd64" && !picked {
				t.Errorf("%+v: no job picks %s", o, cell)
			}
		}
	}
	if jobs, err := plan(options{kernel: "6.1", arch: "amd64", only: "link$", run: "TestX"}); err != nil || len(jobs) != 1 || jobs[0].Run != "TestX" {
		t.Errorf("%v, %v", jobs, err)
	}
	if jobs, err := plan(options{kernel: "6.1", arch: "amd64", only: "steering$", run: "TestX"}); err != nil || len(jobs) != 1 {
		t.Errorf("one pattern for a package is one job: %v, %v", jobs, err)
	}
	if _, err := plan(options{kernel: "6.1", arch: "amd64", only: "nothing"}); err == nil {
		t.Error("a plan of nothing")
	}
}

// pick marks the cells that a pattern of go test -run picks below TestMatrix, and reports whether there are any. A pattern for the last
// element of a test's name, how pods are attached, picks none: the table does not have it.
func pick(selection string, cells map[string]bool) (found bool) {
	patterns := strings.Split(selection, "/")
	for cell := range cells {
		elements := strings.Split(cell, "/")
		fits := len(patterns) <= len(elements)
		for i := 0; fits && i < len(patterns); i++ {
			fits = regexp.MustCompile(patterns[i]).MatchString(elements[i])
		}
		cells[cell] = cells[cell] || fits
		found = found || fits
	}
	return found
}
