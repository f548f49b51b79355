package access

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

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
	Capabilities []string
	Mounts       []mount
}

func (c confined) String() string { return c.Set + "/" + c.Name }

// daemonSet is as much of one as reports that.
type daemonSet struct {
	Spec struct {
		Template struct {
			Spec struct {
				InitContainers, Containers []struct {
					Name            string
					VolumeMounts    []mount
					SecurityContext struct {
						RunAsUser    int
						Capabilities struct{ Add, Drop []string }
					}
				}
				Volumes []struct {
					Name     string
					HostPath struct{ Path string }
				}
			}
		}
	}
}

// containers reads those of a manifest in install/.
func containers(install, set string) ([]confined, error) {
	text, err := os.ReadFile(filepath.Join(install, set, "daemonset.yaml"))
	if err != nil {
		return nil, err
	}
	var m daemonSet
	if err := yaml.Unmarshal(text, &m); err != nil {
		return nil, err
	}
	host := map[string]string{}
	for _, v := range m.Spec.Template.Spec.Volumes {
		host[v.Name] = v.HostPath.Path
	}
	var out []confined
	for _, c := range slices.Concat(m.Spec.Template.Spec.InitContainers, m.Spec.Template.Spec.Containers) {
		s := c.SecurityContext
		if !slices.Equal(s.Capabilities.Drop, []string{"ALL"}) {
			return nil, fmt.Errorf("%s/%s keeps capabilities that it does not name", set, c.Name)
		}
		one := confined{Set: set, Name: c.Name, User: s.RunAsUser, Capabilities: s.Capabilities.Add, Mounts: c.VolumeMounts}
		for i := range one.Mounts {
			one.Mounts[i].Host = host[one.Mounts[i].Name]
		}
		out = append(out, one)
	}
	return out, nil
}
