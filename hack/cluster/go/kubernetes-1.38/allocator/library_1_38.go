//go:build kubernetes_1_38

package main

import (
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/api"
	"k8s.io/dynamic-resource-allocation/structured"
)

type (
	slice    = api.ResourceSlice
	sharedID = structured.DeviceID
)

func forAllocator(slices []*resourceapi.ResourceSlice) ([]*slice, error) {
	converted := make([]*slice, len(slices))
	for i, one := range slices {
		converted[i] = &slice{}
		if err := api.Convert_v1_ResourceSlice_To_api_ResourceSlice(one, converted[i], nil); err != nil {
			return nil, err
		}
	}
	return converted, nil
}

func sharedOf(device structured.DeviceID, _ *types.UID) sharedID { return device }
