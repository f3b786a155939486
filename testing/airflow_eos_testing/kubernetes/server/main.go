// Command api-server runs a Kubernetes API server with its etcd in one process.
//
// The first argument is the folder of etcd's data, the second the URL etcd listens on; the rest are
// arguments of kube-apiserver.
package main

import (
	"log"
	"net/url"
	"os"

	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() {
	clients, err := url.Parse(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	startEtcd(os.Args[1], *clients)
	command := app.NewAPIServerCommand()
	command.SetArgs(append([]string{"--etcd-servers=" + clients.String()}, os.Args[3:]...))
	os.Exit(cli.Run(command))
}

// startEtcd returns when etcd of a single member accepts clients.
func startEtcd(folder string, clients url.URL) {
	config := embed.NewConfig()
	config.Dir = folder
	config.LogLevel = "warn"
	config.UnsafeNoFsync = true
	config.ListenClientUrls = []url.URL{clients}
	config.AdvertiseClientUrls = config.ListenClientUrls
	// A single member has no peers: any free port will do.
	peers := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	config.ListenPeerUrls = []url.URL{peers}
	etcd, err := embed.StartEtcd(config)
	if err != nil {
		log.Fatal(err)
	}
	<-etcd.Server.ReadyNotify()
}
