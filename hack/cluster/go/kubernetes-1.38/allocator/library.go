//go:build !kubernetes_1_38

package main

import (
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/structured"
)

// Where the allocator's library of Kubernetes 1.37 differs from that of 1.38.
type (
	slice    = resourceapi.ResourceSlice
	sharedID = structured.SharedDeviceID
)

func forAllocator(slices []*resourceapi.ResourceSlice) ([]*slice, error) { return slices, nil }

func sharedOf(device structured.DeviceID, share *types.UID) sharedID {
	return structured.MakeSharedDeviceID(device, share)
}
