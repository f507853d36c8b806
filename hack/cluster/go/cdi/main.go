// cdi-inject does to a container what containerd and CRI-O do with its CDI devices.
//
// In: an OCI configuration on stdin, a folder of CDI specs and the names of devices. Out: the
// configuration with their edits, on stdout. The library is the one that both runtimes use.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

func main() {
	if len(os.Args) < 3 {
		fail(fmt.Errorf("usage: cdi-inject FOLDER DEVICE... <config.json"))
	}
	var config oci.Spec
	if err := json.NewDecoder(os.Stdin).Decode(&config); err != nil {
		fail(err)
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(os.Args[1]), cdi.WithAutoRefresh(false))
	if err != nil {
		fail(err)
	}
	for _, problems := range cache.GetErrors() {
		for _, problem := range problems {
			fail(problem)
		}
	}
	if _, err := cache.InjectDevices(&config, os.Args[2:]...); err != nil {
		fail(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(config); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
