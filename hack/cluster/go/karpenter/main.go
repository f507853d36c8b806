// karpenter-judge says which machine types Karpenter takes for claims, and when it takes a node for ready.
//
// In: on stdin one JSON object for each case: machine types with the templates that `dra-driver inspect
// --template karpenter` prints, DeviceClasses, and claims of one pod; or a node with its ResourceSlices, and resource names that
// pods asked for. Out: on stdout one JSON object for each case, in their order. All of it is decided by Karpenter's own
// functions.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"unique"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpenter "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/lifecycle"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/scheduling/dynamicresources"
)

const nodePool = "gpus"

type question struct {
	Types   map[string]resources         `json:"types"`
	Classes []*resourceapi.DeviceClass   `json:"classes"`
	Claims  []*resourceapi.ResourceClaim `json:"claims"`

	Node     *corev1.Node                `json:"node"`
	Slices   []resourceapi.ResourceSlice `json:"slices"`
	Requests corev1.ResourceList         `json:"requests"`
}

type answer struct {
	// Devices by machine type and claim: none for a type that does not do.
	Devices map[string]map[string][]string `json:"devices"`
	Error   string                         `json:"error,omitempty"`
	// What the node still lacks: a resource name or a driver; empty if nothing.
	Awaited string `json:"awaited,omitempty"`
}

// resources are a machine type's DynamicResources as they are printed.
type resources struct {
	Templates []struct {
		Driver         string                   `json:"driver"`
		Pool           struct{ Name string }    `json:"pool"`
		Devices        []resourceapi.Device     `json:"devices"`
		SharedCounters []resourceapi.CounterSet `json:"sharedCounters"`
	} `json:"resourceSliceTemplates"`
	Bindings []struct {
		Attribute resourceapi.QualifiedName               `json:"attribute"`
		Devices   []struct{ Driver, Pool, Device string } `json:"devices"`
	} `json:"attributeBindings"`
}

func (printed resources) read() cloudprovider.DynamicResources {
	var found cloudprovider.DynamicResources
	for _, one := range printed.Templates {
		template := &cloudprovider.ResourceSliceTemplate{
			Driver:         unique.Make(one.Driver),
			Pool:           cloudprovider.ResourcePool{Name: unique.Make(one.Pool.Name)},
			SharedCounters: one.SharedCounters,
		}
		for _, device := range one.Devices {
			template.Devices = append(template.Devices, cloudprovider.Device{
				Name:                     unique.Make(device.Name),
				Attributes:               device.Attributes,
				Capacity:                 device.Capacity,
				AllowMultipleAllocations: device.AllowMultipleAllocations != nil && *device.AllowMultipleAllocations,
				ConsumesCounters:         device.ConsumesCounters,
			})
		}
		found.ResourceSliceTemplates = append(found.ResourceSliceTemplates, template)
	}
	for _, one := range printed.Bindings {
		binding := &cloudprovider.AttributeBinding{Attribute: one.Attribute}
		for _, device := range one.Devices {
			binding.Devices = append(binding.Devices, cloudprovider.DeviceID{
				Driver: unique.Make(device.Driver), Pool: unique.Make(device.Pool), Device: unique.Make(device.Device),
			})
		}
		found.AttributeBindings = append(found.AttributeBindings, binding)
	}
	return found
}

// newNode is a NodeClaim that may become any of the machine types.
type newNode []*cloudprovider.InstanceType

func (newNode) ID() dynamicresources.NodeClaimID        { return unique.Make("new") }
func (newNode) NodeName() string                        { return "" }
func (newNode) NodePoolID() dynamicresources.NodePoolID { return unique.Make(nodePool) }
func (newNode) Requirements() scheduling.Requirements   { return scheduling.NewRequirements() }

func (types newNode) InstanceTypes() []dynamicresources.InstanceTypeID {
	var found []dynamicresources.InstanceTypeID
	for _, one := range types {
		found = append(found, unique.Make(one.Name))
	}
	return found
}

func (types newNode) ResourceSlices() map[dynamicresources.InstanceTypeID][]dynamicresources.ResourceSlice {
	found := map[dynamicresources.InstanceTypeID][]dynamicresources.ResourceSlice{}
	for _, one := range types {
		for _, template := range one.DynamicResources.ResourceSliceTemplates {
			id := unique.Make(one.Name)
			found[id] = append(found[id], dynamicresources.NewTemplateSlice(template))
		}
	}
	return found
}

// classes is an API server that has DeviceClasses alone.
type classes struct {
	client.Client
	all []*resourceapi.DeviceClass
}

func (one classes) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	for _, class := range one.all {
		if class.Name == key.Name {
			class.DeepCopyInto(into.(*resourceapi.DeviceClass))
			return nil
		}
	}
	return fmt.Errorf("device class %s does not exist", key.Name)
}

func main() {
	if len(os.Args) > 1 {
		fmt.Println("usage: karpenter-judge <CASES >ANSWERS")
		return
	}
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var one question
		if err := in.Decode(&one); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			fail(err)
		}
		found := one.allocated
		if one.Node != nil {
			found = one.awaited
		}
		if err := out.Encode(found()); err != nil {
			fail(err)
		}
	}
}

func (one question) allocated() answer {
	var types newNode
	for name, printed := range one.Types {
		types = append(types, &cloudprovider.InstanceType{Name: name, DynamicResources: printed.read()})
	}
	allocator := dynamicresources.NewAllocator(
		nil,
		dynamicresources.AllocatedDeviceState{},
		dynamicresources.BuildAttributeBindings(map[string][]*cloudprovider.InstanceType{nodePool: types}),
		classes{all: one.Classes},
		nil,
	)
	result, err := allocator.Allocate(context.Background(), types, one.Claims)
	if err != nil {
		return answer{Error: err.Error()}
	}
	result.Allocation.Commit(context.Background())
	found := answer{Devices: map[string]map[string][]string{}}
	for _, id := range result.InstanceTypes {
		found.Devices[id.Value()] = map[string][]string{}
	}
	for claim, taken := range allocator.ResourceClaimAllocationMetadata() {
		for id, devices := range taken.Devices {
			for _, device := range devices {
				of, name := found.Devices[id.Value()], claim.Value().Name
				of[name] = append(of[name], device.DeviceID.Device.Value())
			}
		}
	}
	return found
}

// awaited says for what a node is not initialised: Karpenter neither removes nor replaces one that is not.
func (one question) awaited() answer {
	claim := &karpenter.NodeClaim{ObjectMeta: metav1.ObjectMeta{
		Annotations: map[string]string{karpenter.DRADriversAnnotationKey: "gpu.nvidia.com"},
	}}
	claim.Spec.Resources.Requests = one.Requests
	if name, ok := lifecycle.RequestedResourcesRegistered(one.Node, claim); !ok {
		return answer{Awaited: string(name)}
	}
	driver, _ := lifecycle.DRADriversPublished(claim, one.Slices)
	return answer{Awaited: driver}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "error:", err)
	os.Exit(1)
}
