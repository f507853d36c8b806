package main

// cost measures what the allocator takes for one claim on one node.
//
// In: on stdin a node's ResourceSlices, and the cases: a claim for one device, by the CEL selector
// of its class and its own, while some devices are in use. Out: microseconds by case, on stdout.

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

// What is measured is the fastest of many short spells: everything else on a machine only adds.
const (
	spells = 20
	spell  = 25 * time.Millisecond
)

type asked struct {
	Slices []*resourceapi.ResourceSlice `json:"slices"`
	Cases  map[string]scene             `json:"cases"`
}

type scene struct {
	Class    string   `json:"class"`
	Selector string   `json:"selector"`
	InUse    []string `json:"inUse"`
}

// class is the only DeviceClass there is.
type class struct{ *resourceapi.DeviceClass }

func (one class) Get(string) (*resourceapi.DeviceClass, error) { return one.DeviceClass, nil }

func (one class) List() ([]*resourceapi.DeviceClass, error) {
	return []*resourceapi.DeviceClass{one.DeviceClass}, nil
}

func cost() {
	var all asked
	if err := json.NewDecoder(os.Stdin).Decode(&all); err != nil {
		fail(err)
	}
	if len(all.Slices) == 0 {
		fail(fmt.Errorf("there are no slices"))
	}
	slices, err := forAllocator(all.Slices)
	if err != nil {
		fail(err)
	}
	found := map[string]float64{}
	for name, one := range all.Cases {
		took, err := one.measure(slices)
		if err != nil {
			fail(fmt.Errorf("%s: %w", name, err))
		}
		found[name] = took
	}
	if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
		fail(err)
	}
}

func (one scene) measure(slices []*slice) (float64, error) {
	cache := cel.NewCache(10, cel.Features{EnableConsumableCapacity: true})
	best := math.Inf(1)
	for range spells {
		began, count := time.Now(), 0
		for time.Since(began) < spell {
			if err := one.allocate(slices, cache); err != nil {
				return 0, err
			}
			count++
		}
		best = min(best, float64(time.Since(began).Nanoseconds())/1000/float64(count))
	}
	return best, nil
}

func (one scene) allocate(slices []*slice, cache *cel.Cache) error {
	driver, pool := fmt.Sprint(slices[0].Spec.Driver), fmt.Sprint(slices[0].Spec.Pool.Name)
	inUse := sets.New[structured.DeviceID]()
	for _, name := range one.InUse {
		inUse.Insert(structured.MakeDeviceID(driver, pool, name))
	}
	state := structured.AllocatedState{
		AllocatedDevices:   inUse,
		AggregatedCapacity: structured.ConsumedCapacityCollection{},
	}
	classes := class{&resourceapi.DeviceClass{
		Spec: resourceapi.DeviceClassSpec{Selectors: selectors(one.Class)},
	}}
	allocator, err := structured.NewAllocator(context.Background(), features, state, classes, slices, cache)
	if err != nil {
		return err
	}
	node := &corev1.Node{}
	node.Name = *slices[0].Spec.NodeName
	results, err := allocator.Allocate(context.Background(), node, []*resourceapi.ResourceClaim{one.claim()})
	if err != nil {
		return err
	}
	if len(results) != 1 {
		return fmt.Errorf("no device fits")
	}
	return nil
}

func (one scene) claim() *resourceapi.ResourceClaim {
	request := resourceapi.DeviceRequest{Name: "one", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: "one",
		Selectors:       selectors(one.Selector),
		AllocationMode:  resourceapi.DeviceAllocationModeExactCount,
		Count:           1,
	}}
	claim := &resourceapi.ResourceClaim{}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{request}
	return claim
}

func selectors(expression string) []resourceapi.DeviceSelector {
	if expression == "" {
		return nil
	}
	selector := resourceapi.CELDeviceSelector{Expression: expression}
	return []resourceapi.DeviceSelector{{CEL: &selector}}
}
