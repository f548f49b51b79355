package access

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// mount is one of a container's.
type mount struct {
	Name      string
	MountPath string
	ReadOnly  bool
	Host      string // the host's path; "" where it is the pod's own, or an object of the cluster's
}

// confined is a container as the manifests confine it.
type confined struct {
	Set, Name    string
	User         int
	Capabilities []corev1.Capability
	Mounts       []mount
}

func (c confined) String() string { return c.Set + "/" + c.Name }

// containers reads those of a manifest in install/.
func containers(install, set string) ([]confined, error) {
	text, err := os.ReadFile(filepath.Join(install, set, "daemonset.yaml"))
	if err != nil {
		return nil, err
	}
	var d appsv1.DaemonSet
	if err := yaml.Unmarshal(text, &d); err != nil {
		return nil, err
	}
	pod := d.Spec.Template.Spec
	host := map[string]string{}
	for _, v := range pod.Volumes {
		if v.HostPath != nil {
			host[v.Name] = v.HostPath.Path
		}
	}
	var out []confined
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		s := c.SecurityContext
		if s == nil || s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
			return nil, fmt.Errorf("%s/%s keeps capabilities that it does not name", set, c.Name)
		}
		one := confined{Set: set, Name: c.Name, Capabilities: s.Capabilities.Add}
		if s.RunAsUser != nil {
			one.User = int(*s.RunAsUser)
		}
		for _, m := range c.VolumeMounts {
			one.Mounts = append(one.Mounts, mount{m.Name, m.MountPath, m.ReadOnly, host[m.Name]})
		}
		out = append(out, one)
	}
	return out, nil
}
