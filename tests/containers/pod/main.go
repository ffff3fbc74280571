// SPDX-License-Identifier: Apache-2.0 OR MIT

// Makes pods as kubelet does: a client of the CRI (k8s.io/cri-api).
//
//	pod SOCKET wait                                      waits until the runtime is ready
//	pod SOCKET run NAME [KEY=VALUE]...                   makes a pod with these annotations, prints its id
//	pod SOCKET start POD NAME [VAR=VALUE]... PROGRAM...  makes a container in a pod and starts it, prints its id and its PID
//	pod SOCKET daemonset NAME <OBJECTS                   makes the pod of a DaemonSet, prints the ids of both and the PID; OBJECTS: JSON, one a line
//	pod SOCKET remove POD                                stops and removes a pod
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const image = "fastpath.test/programs:1"

func main() {
	if err := run(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, "pod:", err)
		os.Exit(1)
	}
}

func run(socket, command string, args []string) error {
	connection, err := grpc.Dial("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	client := cri.NewRuntimeServiceClient(connection)
	switch command {
	case "wait":
		return wait(ctx, client)
	case "run":
		return runPod(ctx, client, args[0], args[1:])
	case "start":
		return start(ctx, client, args[0], args[1], args[2:])
	case "daemonset":
		return daemonset(ctx, client, args[0])
	case "remove":
		if _, err := client.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: args[0]}); err != nil {
			return err
		}
		_, err := client.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: args[0]})
		return err
	}
	return fmt.Errorf("unknown command %s", command)
}

func wait(ctx context.Context, client cri.RuntimeServiceClient) error {
	for {
		_, err := client.Version(ctx, &cri.VersionRequest{})
		if err == nil || ctx.Err() != nil {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// assignments splits leading KEY=VALUE arguments from the others.
func assignments(args []string) (map[string]string, []string) {
	all := map[string]string{}
	for len(args) > 0 && strings.Contains(args[0], "=") {
		key, value, _ := strings.Cut(args[0], "=")
		all[key], args = value, args[1:]
	}
	return all, args
}

// The pod has the network of the host, so that no CNI plugin is needed.
func configOf(name string, annotations map[string]string) *cri.PodSandboxConfig {
	return &cri.PodSandboxConfig{
		Metadata:    &cri.PodSandboxMetadata{Name: name, Uid: name, Namespace: "test"},
		Annotations: annotations,
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent: os.Getenv("group"),
			SecurityContext: &cri.LinuxSandboxSecurityContext{
				NamespaceOptions: &cri.NamespaceOption{Network: cri.NamespaceMode_NODE, Pid: cri.NamespaceMode_CONTAINER},
			},
		},
	}
}

func runPod(ctx context.Context, client cri.RuntimeServiceClient, name string, args []string) error {
	annotations, _ := assignments(args)
	made, err := client.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: configOf(name, annotations)})
	if err != nil {
		return err
	}
	fmt.Println(made.PodSandboxId)
	return nil
}

func start(ctx context.Context, client cri.RuntimeServiceClient, pod, name string, args []string) error {
	variables, program := assignments(args)
	status, err := client.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: pod})
	if err != nil {
		return err
	}
	config := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: name},
		Image:    &cri.ImageSpec{Image: image},
		Command:  program,
		Linux: &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{
			NamespaceOptions: &cri.NamespaceOption{Network: cri.NamespaceMode_NODE, Pid: cri.NamespaceMode_CONTAINER},
			Seccomp:          &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault},
		}},
	}
	for key, value := range variables {
		config.Envs = append(config.Envs, &cri.KeyValue{Key: key, Value: value})
	}
	made, err := client.CreateContainer(ctx, &cri.CreateContainerRequest{
		PodSandboxId:  pod,
		Config:        config,
		SandboxConfig: configOf(status.Status.Metadata.Name, status.Status.Annotations),
	})
	if err != nil {
		return err
	}
	return startMade(ctx, client, made)
}

func startMade(ctx context.Context, client cri.RuntimeServiceClient, made *cri.CreateContainerResponse) error {
	if _, err := client.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: made.ContainerId}); err != nil {
		return err
	}
	about, err := client.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: made.ContainerId, Verbose: true})
	if err != nil {
		return err
	}
	var info struct {
		Pid int `json:"pid"`
	}
	if err := json.Unmarshal([]byte(about.Info["info"]), &info); err != nil {
		return err
	}
	fmt.Println(made.ContainerId, info.Pid)
	return nil
}
