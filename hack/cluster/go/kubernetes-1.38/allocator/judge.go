package main

// judge says what the allocator does with claims on a node.
//
// In: on stdin one JSON object for each case: ResourceSlices, DeviceClasses, a Node, the claims to be
// allocated on it, and claims that have devices already. Out: on stdout one JSON object for each case, in
// their order: the devices, none if the claims do not fit, or the error with which the scheduler gives up.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

// As long as a scheduler looks at one node.
const limit = 10 * time.Second

type question struct {
	Slices  []*resourceapi.ResourceSlice `json:"slices"`
	Classes []*resourceapi.DeviceClass   `json:"classes"`
	Node    *corev1.Node                 `json:"node"`
	Claims  []*resourceapi.ResourceClaim `json:"claims"`
	Taken   []*resourceapi.ResourceClaim `json:"taken"`
	// Of another scheduler's, in the place of those above.
	Features *structured.Features `json:"features"`
	// Of stable, incubating and experimental; the scheduler takes the first that has its features.
	Allocators []string `json:"allocators"`
}

type device struct {
	Request  string            `json:"request"`
	Driver   string            `json:"driver"`
	Pool     string            `json:"pool"`
	Device   string            `json:"device"`
	Consumed map[string]string `json:"consumed,omitempty"`
}

type answer struct {
	Fits    bool       `json:"fits"`
	Devices [][]device `json:"devices"`
	Error   string     `json:"error,omitempty"`
}

type classes []*resourceapi.DeviceClass

func (all classes) Get(name string) (*resourceapi.DeviceClass, error) {
	for _, one := range all {
		if one.Name == name {
			return one, nil
		}
	}
	return nil, fmt.Errorf("device class %s does not exist", name)
}

func (all classes) List() ([]*resourceapi.DeviceClass, error) { return all, nil }

func judge() {
	cache := cel.NewCache(1000, cel.Features{EnableConsumableCapacity: true})
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var one question
		if err := in.Decode(&one); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			fail(err)
		}
		if err := out.Encode(one.judged(cache)); err != nil {
			fail(err)
		}
	}
}

func (one question) judged(cache *cel.Cache) answer {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	known := features
	if one.Features != nil {
		known = *one.Features
	}
	slices, err := forAllocator(one.Slices)
	if err != nil {
		return answer{Error: err.Error()}
	}
	structured.EnableAllocators(one.Allocators...)
	allocator, err := structured.NewAllocator(ctx, known, one.state(), classes(one.Classes), slices, cache)
	if err != nil {
		return answer{Error: err.Error()}
	}
	results, err := allocator.Allocate(ctx, one.Node, one.Claims)
	if err != nil {
		return answer{Error: err.Error()}
	}
	found := answer{Fits: len(results) == len(one.Claims)}
	for _, result := range results {
		devices := []device{}
		for _, one := range result.Devices.Results {
			consumed := map[string]string{}
			for name, amount := range one.ConsumedCapacity {
				consumed[string(name)] = amount.String()
			}
			devices = append(devices, device{
				Request: one.Request, Driver: one.Driver, Pool: one.Pool, Device: one.Device, Consumed: consumed,
			})
		}
		found.Devices = append(found.Devices, devices)
	}
	return found
}

// state is what the scheduler's plugin knows of the devices that claims have.
func (one question) state() structured.AllocatedState {
	found := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[sharedID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, claim := range one.Taken {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, result := range claim.Status.Allocation.Devices.Results {
			if result.AdminAccess != nil && *result.AdminAccess {
				continue
			}
			id := structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
			if result.ShareID == nil {
				found.AllocatedDevices.Insert(id)
				continue
			}
			found.AllocatedSharedDeviceIDs.Insert(sharedOf(id, result.ShareID))
			if result.ConsumedCapacity != nil {
				found.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, result.ConsumedCapacity))
			}
		}
	}
	return found
}
