// SPDX-License-Identifier: Apache-2.0 OR MIT

// Runs a kube-apiserver and the etcd that it needs in one process, on the loopback interface. The versions are those of
// go.mod; there is no kubelet, no scheduler and no controller.
//
//	apiserver DIRECTORY PORT
//
// DIRECTORY gets tls/apiserver.crt, which clients trust. Tokens of clients: `admin`, who may do everything.
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

const (
	etcdClients = "http://127.0.0.1:2379"
	etcdPeers   = "http://127.0.0.1:2380"
)

func startEtcd(directory string) error {
	clients, err := url.Parse(etcdClients)
	if err != nil {
		return err
	}
	peers, err := url.Parse(etcdPeers)
	if err != nil {
		return err
	}
	config := embed.NewConfig()
	config.Dir = directory
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{*clients}, []url.URL{*clients}
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{*peers}, []url.URL{*peers}
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	config.LogLevel = "error"
	// Nothing is kept.
	config.UnsafeNoFsync = true
	etcd, err := embed.StartEtcd(config)
	if err != nil {
		return err
	}
	<-etcd.Server.ReadyNotify()
	return nil
}

// writeKey writes a key, by which the server signs the tokens of service accounts.
func writeKey(file string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	bytes, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: bytes}), 0o600)
}

func prepare(directory string) error {
	if err := writeKey(filepath.Join(directory, "key")); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(directory, "tokens"), []byte("admin,admin,1,system:masters\n"), 0o600); err != nil {
		return err
	}
	return startEtcd(filepath.Join(directory, "etcd"))
}

func main() {
	directory, port := os.Args[1], os.Args[2]
	if err := prepare(directory); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	key := filepath.Join(directory, "key")
	command := app.NewAPIServerCommand()
	command.SetArgs([]string{
		"--etcd-servers=" + etcdClients,
		"--bind-address=127.0.0.1",
		"--secure-port=" + port,
		// It must not be one of the loopback interface. Nothing connects to it.
		"--advertise-address=192.0.2.1",
		"--endpoint-reconciler-type=none",
		"--cert-dir=" + filepath.Join(directory, "tls"),
		"--token-auth-file=" + filepath.Join(directory, "tokens"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + key,
		"--service-account-signing-key-file=" + key,
		"--service-cluster-ip-range=10.96.0.0/16",
		"--authorization-mode=Node,RBAC",
		// PodSecurity and ServiceAccount are among the defaults.
		"--enable-admission-plugins=NodeRestriction",
	})
	os.Exit(cli.Run(command))
}
