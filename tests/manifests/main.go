// SPDX-License-Identifier: Apache-2.0 OR MIT

// Decodes Kubernetes manifests from standard input as strictly as an API server with fieldValidation=Strict: an unknown
// field, a field in another case, a field that is given twice or a value of another type is an error. Prints each object as
// JSON on one line.
//
//	go run -modfile=1.29.mod . <manifests.yaml
//
// Each .mod file has the API types of one release of Kubernetes; go.mod those of 1.37, and with `-tags monitors` also the
// Prometheus operator's.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

var kinds = map[string]func() any{
	"apps/v1 DaemonSet":                  func() any { return new(appsv1.DaemonSet) },
	"v1 ConfigMap":                       func() any { return new(corev1.ConfigMap) },
	"v1 Namespace":                       func() any { return new(corev1.Namespace) },
	"v1 Pod":                             func() any { return new(corev1.Pod) },
	"v1 Service":                         func() any { return new(corev1.Service) },
	"v1 ServiceAccount":                  func() any { return new(corev1.ServiceAccount) },
	"networking.k8s.io/v1 NetworkPolicy": func() any { return new(networkingv1.NetworkPolicy) },
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
