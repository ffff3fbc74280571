// SPDX-License-Identifier: Apache-2.0 OR MIT

// Decodes Kubernetes manifests from standard input as strictly as an API server with fieldValidation=Strict: an unknown
// field, a field in another case, a field that is given twice or a value of another type is an error. Prints each object as
// JSON on one line.
//
//	go run . <manifests.yaml
//
// The API types are those of Kubernetes 1.37 and of the Prometheus operator.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

var kinds = map[string]func() any{
	"apps/v1 DaemonSet":                       func() any { return new(appsv1.DaemonSet) },
	"v1 ConfigMap":                            func() any { return new(corev1.ConfigMap) },
	"v1 Namespace":                            func() any { return new(corev1.Namespace) },
	"v1 Pod":                                  func() any { return new(corev1.Pod) },
	"v1 Service":                              func() any { return new(corev1.Service) },
	"v1 ServiceAccount":                       func() any { return new(corev1.ServiceAccount) },
	"networking.k8s.io/v1 NetworkPolicy":      func() any { return new(networkingv1.NetworkPolicy) },
	"monitoring.coreos.com/v1 PodMonitor":     func() any { return new(monitoringv1.PodMonitor) },
	"monitoring.coreos.com/v1 PrometheusRule": func() any { return new(monitoringv1.PrometheusRule) },
	"monitoring.coreos.com/v1 ServiceMonitor": func() any { return new(monitoringv1.ServiceMonitor) },
}

var separator = regexp.MustCompile(`(?m)^---.*$`)

// decode returns a document as JSON; nothing if it has only comments.
func decode(document []byte) ([]byte, error) {
	text, err := yaml.YAMLToJSONStrict(document)
	if err != nil || string(text) == "null" {
		return nil, err
	}
	var meta metav1.TypeMeta
	if err := json.UnmarshalCaseSensitivePreserveInts(text, &meta); err != nil {
		return nil, err
	}
	kind := meta.APIVersion + " " + meta.Kind
	object, known := kinds[kind]
	if !known {
		return nil, fmt.Errorf("%s: not a known kind", kind)
	}
	strict, err := json.UnmarshalStrict(text, object())
	if err = errors.Join(append(strict, err)...); err != nil {
		return nil, fmt.Errorf("%s: %w", kind, err)
	}
	return text, nil
}

func run() error {
	input, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	for _, document := range separator.Split(string(input), -1) {
		object, err := decode([]byte(document))
		if err != nil {
			return err
		}
		if object != nil {
			fmt.Println(string(object))
		}
	}
	return nil
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
