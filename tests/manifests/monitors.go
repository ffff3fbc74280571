// SPDX-License-Identifier: Apache-2.0 OR MIT

//go:build monitors

package main

import monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"

func init() {
	kinds["monitoring.coreos.com/v1 PodMonitor"] = func() any { return new(monitoringv1.PodMonitor) }
	kinds["monitoring.coreos.com/v1 PrometheusRule"] = func() any { return new(monitoringv1.PrometheusRule) }
	kinds["monitoring.coreos.com/v1 ServiceMonitor"] = func() any { return new(monitoringv1.ServiceMonitor) }
}
