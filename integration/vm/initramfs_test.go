package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/neardns/neardns/pkg/testutil"
)

const dep = `kernel/fs/9p/9p.ko: kernel/net/9p/9pnet.ko kernel/fs/netfs/netfs.ko
kernel/fs/netfs/netfs.ko:
kernel/net/9p/9pnet.ko:
kernel/net/9p/9pnet_virtio.ko: kernel/net/9p/9pnet.ko kernel/drivers/virtio/virtio.ko kernel/drivers/virtio/virtio_ring.ko
kernel/drivers/virtio/virtio.ko: kernel/drivers/virtio/virtio_ring.ko
kernel/drivers/virtio/virtio_ring.ko:
kernel/drivers/virtio/virtio_pci.ko.xz: kernel/drivers/virtio/virtio.ko
`

func TestModuleOrder(t *testing.T) {
	got, err := moduleOrder(dep, "kernel/fs/overlayfs/overlay.ko\n", []string{"virtio_pci", "9pnet_virtio", "9p", "overlay"})
	want := []string{
		"kernel/drivers/virtio/virtio_ring.ko", "kernel/drivers/virtio/virtio.ko", "kernel/drivers/virtio/virtio_pci.ko.xz",
		"kernel/net/9p/9pnet.ko", "kernel/net/9p/9pnet_virtio.ko", "kernel/fs/netfs/netfs.ko", "kernel/fs/9p/9p.ko",
	}
	if d := cmp.Diff(want, got); err != nil || d != "" {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
	if _, err := moduleOrder(dep, "", []string{"overlay"}); err == nil || !strings.Contains(err.Error(), "no module overlay") {
		t.Errorf("a module that is not there: %v", err)
	}
	// A circle, which depmod would refuse, must not hang.
	if got, err := moduleOrder("a.ko: b.ko\nb.ko: a.ko\n", "", []string{"a"}); err != nil || len(got) != 2 {
		t.Errorf("%v, %v", got, err)
	}
}

// readArchive takes a cpio archive apart, by the field offsets of the kernel's own documentation.
func readArchive(t *testing.T, b []byte) map[string]string {
	t.Helper()
	files := map[string]string{}
	for {
		if len(b) < 110 || string(b[:6]) != "070701" {
			t.Fatalf("no header but %q", b[:min(len(b), 110)])
		}
		field := func(i int) (n int) {
			if _, err := fmt.Sscanf(string(b[6+8*i:14+8*i]), "%x", &n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		mode, size, nameSize := field(1), field(6), field(11)
		name := string(b[110 : 110+nameSize-1])
		b = b[(110+nameSize+3)/4*4:]
		if name == "TRAILER!!!" {
			if len(b) > 0 {
				t.Errorf("%d bytes behind the end", len(b))
			}
			return files
		}
		files[name] = fmt.Sprintf("%o %s", mode, b[:size])
		b = b[(size+3)/4*4:]
	}
}

func TestArchive(t *testing.T) {
	var b bytes.Buffer
	a := archive{to: &b}
	a.add("dev", cpioDir|0o755, nil)
	for size := range 5 { // every way to fill up
		a.add(strings.Repeat("n", size+1), cpioFile|0o644, []byte(strings.Repeat("%", size)))
	}
	testutil.Must(t, a.close())
	want := map[string]string{"dev": "40755 ", "n": "100644 ", "nn": "100644 %", "nnn": "100644 %%", "nnnn": "100644 %%%", "nnnnn": "100644 %%%%"}
	if d := cmp.Diff(want, readArchive(t, b.Bytes())); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestInitramfs(t *testing.T) {
	k := kernel{dir: t.TempDir(), release: "6.1.0-test"}
	modules := filepath.Join(k.modulesDir(), k.release)
	write := func(name, text string) {
		file := filepath.Join(modules, name)
		testutil.Must(t, os.MkdirAll(filepath.Dir(file), 0o755))
		testutil.Must(t, os.WriteFile(file, []byte(text), 0o644))
	}
	write("modules.dep", "a/virtio_pci.ko: a/virtio.ko\na/virtio.ko:\n")
	write("modules.builtin", "b/virtio_console.ko\nb/9pnet_virtio.ko\nb/9p.ko\nb/overlay.ko\n")
	write("a/virtio_pci.ko", "pci")
	write("a/virtio.ko", "virtio")
	out := filepath.Join(t.TempDir(), "initramfs")
	self, err := os.Executable()
	testutil.Must(t, err)
	testutil.Must(t, writeInitramfs(out, self, k, guestConfig{Root: "/src", Backends: "b"}))
	b, err := os.ReadFile(out)
	testutil.Must(t, err)
	files := readArchive(t, b)
	if files["modules/00-virtio.ko"] != "100644 virtio" || files["modules/01-virtio_pci.ko"] != "100644 pci" {
		t.Errorf("modules: %q, %q", files["modules/00-virtio.ko"], files["modules/01-virtio_pci.ko"])
	}
	if init := files["init"]; !strings.HasPrefix(init, "100755 \x7fELF") {
		t.Errorf("init is no program: %.20q", init)
	}
	var c guestConfig
	testutil.Must(t, json.Unmarshal([]byte(strings.TrimPrefix(files["guest.json"], "100644 ")), &c))
	want := guestConfig{Root: "/src", Backends: "b", Load: []string{"/modules/00-virtio.ko", "/modules/01-virtio_pci.ko"}}
	if d := cmp.Diff(want, c); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
