// Command kube-scheduler is the scheduler of Kubernetes 1.38.
//
// The other programs of that release need modules that the Go module proxy does not serve yet.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() {
	os.Exit(cli.Run(scheduler.NewSchedulerCommand()))
}
