// kit is every part of a small, real Kubernetes in one binary: its first argument says which.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	_ "time/tzdata"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"

	"go.etcd.io/etcd/server/v3/etcdmain"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var parts = map[string]func(){
	"etcd":                    func() { etcdmain.Main(os.Args) },
	"kube-apiserver":          func() { run(apiserver.NewAPIServerCommand()) },
	"kube-controller-manager": func() { run(controllers.NewControllerManagerCommand()) },
	"kube-scheduler":          func() { run(scheduler.NewSchedulerCommand()) },
	"kubelet":                 func() { run(kubelet.NewKubeletCommand(context.Background())) },
	"kube-proxy":              func() { run(proxy.NewProxyCommand()) },
	"coredns":                 runCoreDNS,
	"ingress":                 runIngress,
	"certs":                   makeCertificates,
}

func main() {
	if len(os.Args) < 2 || parts[os.Args[1]] == nil {
		names := slices.Sorted(maps.Keys(parts))
		die(fmt.Errorf("usage: kit %s ...", strings.Join(names, "|")))
	}
	os.Args = os.Args[1:] // each part reads them as if it were alone
	parts[os.Args[0]]()
}

func run(command *cobra.Command) { os.Exit(cli.Run(command)) }

func die(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}
