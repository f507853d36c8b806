// allocation-judge asks the scheduler's DRA allocator: without arguments what it does with claims, with
// `cost` how long it takes. It is the code that kube-scheduler runs for every pod and every node it looks at.
package main

import (
	"fmt"
	"os"
	"strings"

	"k8s.io/dynamic-resource-allocation/structured"
)

// What a scheduler of Kubernetes 1.37, and of 1.38, has on by default.
var features = structured.Features{
	AdminAccess:             true,
	PrioritizedList:         true,
	PartitionableDevices:    true,
	DeviceTaints:            true,
	DeviceBindingAndStatus:  true,
	ConsumableCapacity:      true,
	FractionalCapacityRange: true,
}

func main() {
	switch strings.Join(os.Args[1:], " ") {
	case "":
		judge()
	case "cost":
		cost()
	default:
		fmt.Println("usage: allocation-judge [cost] <CASES >ANSWERS")
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "error:", err)
	os.Exit(1)
}
