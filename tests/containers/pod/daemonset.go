// SPDX-License-Identifier: Apache-2.0 OR MIT

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A DaemonSet, as far as the pods of these tests have it.
type daemonSet struct {
	Kind     string
	Metadata struct{ Name string }
	Spec     struct{ Template struct{ Spec podSpec } }
}

type podSpec struct {
	HostPID         bool
	SecurityContext struct {
		RunAsUser, RunAsGroup int64
		SeccompProfile        struct{ Type string }
	}
	Containers []struct {
		Name          string
		Command, Args []string
		VolumeMounts  []struct {
			Name, MountPath string
			ReadOnly        bool
		}
		SecurityContext struct {
			AllowPrivilegeEscalation, ReadOnlyRootFilesystem bool
			Capabilities                                     struct{ Add, Drop []string }
		}
	}
	Volumes []struct {
		Name     string
		HostPath struct{ Path string }
	}
}

func find(objects io.Reader, name string) (*podSpec, error) {
	decoder := json.NewDecoder(objects)
	for {
		var each daemonSet
		err := decoder.Decode(&each)
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("there is no DaemonSet %s", name)
		}
		if err == nil && each.Kind == "DaemonSet" && each.Metadata.Name == name {
			return &each.Spec.Template.Spec, nil
		}
		// Fields of other kinds may have the same names and other types.
		var other *json.UnmarshalTypeError
		if err != nil && !errors.As(err, &other) {
			return nil, err
		}
	}
}

// daemonset makes a pod with the first container of a DaemonSet, as kubelet does. The image is that of the tests.
func daemonset(ctx context.Context, client cri.RuntimeServiceClient, name string) error {
	spec, err := find(os.Stdin, name)
	if err != nil {
		return err
	}
	container := spec.Containers[0]
	processes := cri.NamespaceMode_CONTAINER
	if spec.HostPID {
		processes = cri.NamespaceMode_NODE
	}
	namespaces := &cri.NamespaceOption{Network: cri.NamespaceMode_NODE, Pid: processes}
	sandbox := configOf(name, nil)
	sandbox.LogDirectory = os.Getenv("logs")
	sandbox.Linux.SecurityContext.NamespaceOptions = namespaces
	pod, err := client.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: sandbox})
	if err != nil {
		return err
	}
	user, group := spec.SecurityContext, container.SecurityContext
	seccomp := cri.SecurityProfile_RuntimeDefault
	if user.SeccompProfile.Type != "RuntimeDefault" {
		return fmt.Errorf("seccomp profile %s is not known here", user.SeccompProfile.Type)
	}
	config := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: container.Name},
		Image:    &cri.ImageSpec{Image: image},
		Command:  container.Command,
		Args:     container.Args,
		LogPath:  container.Name + ".log",
		Linux: &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{
			NamespaceOptions: namespaces,
			RunAsUser:        &cri.Int64Value{Value: user.RunAsUser},
			RunAsGroup:       &cri.Int64Value{Value: user.RunAsGroup},
			NoNewPrivs:       !group.AllowPrivilegeEscalation,
			ReadonlyRootfs:   group.ReadOnlyRootFilesystem,
			Capabilities:     &cri.Capability{AddCapabilities: group.Capabilities.Add, DropCapabilities: group.Capabilities.Drop},
			Seccomp:          &cri.SecurityProfile{ProfileType: seccomp},
		}},
	}
	for _, mount := range container.VolumeMounts {
		for _, volume := range spec.Volumes {
			if volume.Name != mount.Name {
				continue
			}
			// type: DirectoryOrCreate
			if err := os.MkdirAll(volume.HostPath.Path, 0o755); err != nil {
				return err
			}
			config.Mounts = append(config.Mounts, &cri.Mount{HostPath: volume.HostPath.Path, ContainerPath: mount.MountPath, Readonly: mount.ReadOnly})
		}
	}
	made, err := client.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: pod.PodSandboxId, Config: config, SandboxConfig: sandbox})
	if err != nil {
		return err
	}
	fmt.Print(pod.PodSandboxId, " ")
	return startMade(ctx, client, made)
}
