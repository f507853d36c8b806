// Command kubernetes is a whole Kubernetes node in one binary.
//
// It acts as the program it is called as: through a link named kubelet it is the
// kubelet. Called by another name it takes the program's name as first argument.
// One binary instead of five compiles and links once what the five have in common.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var programs = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllermanager.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	// The kubelet's command sets up its own signal handling; a context that is
	// already bound to signals would do it twice, which panics.
	"kubelet": func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
	"kubectl": kubectl.NewDefaultKubectlCommand,
}

func main() {
	name := filepath.Base(os.Args[0])
	if _, known := programs[name]; !known && len(os.Args) > 1 {
		os.Args = os.Args[1:]
		name = os.Args[0]
	}
	newCommand, known := programs[name]
	if !known {
		names := make([]string, 0, len(programs))
		for program := range programs {
			names = append(names, program)
		}
		slices.Sort(names)
		fmt.Fprintf(os.Stderr, "usage: kubernetes PROGRAM [ARGUMENT...], where PROGRAM is one of %s\n",
			strings.Join(names, ", "))
		os.Exit(2)
	}
	os.Exit(cli.Run(newCommand()))
}
