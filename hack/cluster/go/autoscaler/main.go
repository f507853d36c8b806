// autoscaler-judge says what Cluster Autoscaler makes of a cluster.
//
// In: on stdin one JSON object for each case: nodes of one node group with their ResourceSlices, DeviceClasses,
// pods and their claims, the label by which the cloud's provider knows GPU nodes, and a pending pod. Out: on stdout
// one JSON object for each case, in their order: of each node whether it is ready, how much of it is used and
// whether it goes, and whether a new node of the group would help the pending pod.
// All of it is decided by Cluster Autoscaler's own functions; only the cloud is made up.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/cluster-autoscaler/pkg/cloudprovider"
	testprovider "sigs.k8s.io/cluster-autoscaler/pkg/cloudprovider/test"
	"sigs.k8s.io/cluster-autoscaler/pkg/config"
	cacontext "sigs.k8s.io/cluster-autoscaler/pkg/context"
	"sigs.k8s.io/cluster-autoscaler/pkg/core/scaledown/eligibility"
	"sigs.k8s.io/cluster-autoscaler/pkg/core/scaledown/unremovable"
	"sigs.k8s.io/cluster-autoscaler/pkg/processors/customresources"
	"sigs.k8s.io/cluster-autoscaler/pkg/processors/nodegroupconfig"
	"sigs.k8s.io/cluster-autoscaler/pkg/simulator"
	"sigs.k8s.io/cluster-autoscaler/pkg/simulator/clustersnapshot/testsnapshot"
	drasnapshot "sigs.k8s.io/cluster-autoscaler/pkg/simulator/dynamicresources/snapshot"
	"sigs.k8s.io/cluster-autoscaler/pkg/simulator/framework"
	"sigs.k8s.io/cluster-autoscaler/pkg/simulator/options"
	"sigs.k8s.io/cluster-autoscaler/pkg/utils/gpu"
	kubeutil "sigs.k8s.io/cluster-autoscaler/pkg/utils/kubernetes"
	"sigs.k8s.io/cluster-autoscaler/pkg/utils/taints"
)

const group = "gpus"

type question struct {
	GPULabel string                       `json:"gpuLabel"`
	Nodes    []*corev1.Node               `json:"nodes"`
	Slices   []*resourceapi.ResourceSlice `json:"slices"`
	Classes  []*resourceapi.DeviceClass   `json:"classes"`
	Pods     []*corev1.Pod                `json:"pods"`
	Claims   []*resourceapi.ResourceClaim `json:"claims"`
	// Of the node group, if its provider has a template; without, it is its first node.
	Template []*resourceapi.ResourceSlice `json:"template"`
	Pending  *corev1.Pod                  `json:"pending"`
}

type answer struct {
	Nodes map[string]*verdict `json:"nodes"`
	// Why a new node does not help the pending pod; empty if it does.
	NoHelp string `json:"noHelp,omitempty"`
}

type verdict struct {
	Ready       bool    `json:"ready"`
	Resource    string  `json:"resource"`
	Utilization float64 `json:"utilization"`
	// Whether it is underutilised and its pods fit elsewhere; else Reason says why not.
	Goes   bool   `json:"goes"`
	Reason string `json:"reason,omitempty"`
}

// cloud is a provider with one node group, which knows GPU nodes as those of AWS, Azure and Cluster API do.
type cloud struct {
	*testprovider.TestCloudProvider
	label string
}

func (one cloud) GPULabel() string { return one.label }

func (one cloud) GetNodeGpuConfig(node *corev1.Node) *cloudprovider.GpuConfig {
	return gpu.GetNodeGPUFromCloudProvider(one, node)
}

// templates are those of the node groups.
type templates struct {
	cacontext.TemplateNodeInfoRegistry
	template *framework.NodeInfo
}

func (one templates) GetNodeInfo(string) (*framework.NodeInfo, bool) { return one.template, true }

func main() {
	if len(os.Args) > 1 {
		fmt.Println("usage: autoscaler-judge <CASES >ANSWERS")
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
		found, err := one.judged()
		if err != nil {
			fail(err)
		}
		if err := out.Encode(found); err != nil {
			fail(err)
		}
	}
}

func (one question) judged() (*answer, error) {
	now := time.Now()
	dra := one.resources()
	ctx, err := one.context(dra)
	if err != nil {
		return nil, err
	}
	processor := customresources.NewDefaultCustomResourcesProcessor(true, false)
	nodes, _ := processor.FilterOutNodesWithUnreadyResources(ctx, one.Nodes, one.Nodes, dra, nil)
	if err := ctx.ClusterSnapshot.SetClusterState(nodes, one.Pods, dra, nil); err != nil {
		return nil, err
	}
	found := &answer{Nodes: map[string]*verdict{}}
	destinations := map[string]bool{}
	for _, node := range nodes {
		ready, _, err := kubeutil.GetReadinessState(node)
		if err != nil {
			return nil, err
		}
		found.Nodes[node.Name] = &verdict{Ready: ready}
		destinations[node.Name] = true
	}
	checker := eligibility.NewChecker(nodegroupconfig.NewDefaultNodeGroupConfigProcessor(ctx.NodeGroupDefaults))
	unneeded, used, kept := checker.FilterOutUnremovable(ctx, nodes, now, unremovable.NewNodes())
	for name, info := range used {
		found.Nodes[name].Resource, found.Nodes[name].Utilization = string(info.ResourceName), info.Utilization
	}
	removal := simulator.NewRemovalSimulator(nil, ctx.ClusterSnapshot, options.NodeDeleteOptions{}, nil, false)
	for _, name := range unneeded {
		_, stays := removal.SimulateNodeRemoval(name, destinations, now, nil)
		found.Nodes[name].Goes = stays == nil
		if stays != nil {
			kept = append(kept, stays)
		}
	}
	for _, node := range kept {
		found.Nodes[node.Node.Name].Reason = node.Reason.String()
	}
	found.NoHelp, err = one.helped(ctx)
	return found, err
}

// context has the options that Cluster Autoscaler has by default, with dynamic resource allocation.
func (one question) context(dra *drasnapshot.Snapshot) (*cacontext.AutoscalingContext, error) {
	snapshot, handle, err := testsnapshot.NewTestSnapshotAndHandle()
	if err != nil {
		return nil, err
	}
	provider := testprovider.NewTestCloudProviderBuilder().Build()
	provider.AddNodeGroup(group, 0, 10, len(one.Nodes))
	for _, node := range one.Nodes {
		provider.AddNode(group, node)
	}
	slices := one.Template
	if slices == nil {
		slices, _ = dra.NodeResourceSlices(one.Nodes[0].Name)
	}
	example := framework.NewNodeInfo(one.Nodes[0].DeepCopy(), slices)
	template, failure := simulator.SanitizedTemplateNodeInfoFromNodeInfo(example, group, nil, true, taints.TaintConfig{})
	if failure != nil {
		return nil, failure
	}
	return &cacontext.AutoscalingContext{
		AutoscalingOptions: config.AutoscalingOptions{
			DynamicResourceAllocationEnabled: true,
			ScaleDownUnreadyEnabled:          true,
			NodeGroupDefaults: config.NodeGroupAutoscalingOptions{
				ScaleDownUtilizationThreshold:    config.DefaultScaleDownUtilizationThreshold,
				ScaleDownGpuUtilizationThreshold: config.DefaultScaleDownGpuUtilizationThreshold,
			},
		},
		CloudProvider:            cloud{TestCloudProvider: provider, label: one.GPULabel},
		FrameworkHandle:          handle,
		ClusterSnapshot:          snapshot,
		TemplateNodeInfoRegistry: templates{template: template},
	}, nil
}

func (one question) resources() *drasnapshot.Snapshot {
	slices := map[string][]*resourceapi.ResourceSlice{}
	for _, slice := range one.Slices {
		slices[*slice.Spec.NodeName] = append(slices[*slice.Spec.NodeName], slice)
	}
	claims := map[drasnapshot.ResourceClaimId]*resourceapi.ResourceClaim{}
	for _, claim := range one.Claims {
		claims[drasnapshot.GetClaimId(claim)] = claim
	}
	classes := map[string]*resourceapi.DeviceClass{}
	for _, class := range one.Classes {
		classes[class.Name] = class
	}
	return drasnapshot.NewSnapshot(claims, slices, nil, classes)
}

// helped says why the pending pod does not fit on a new node of the group; nothing if it does.
func (one question) helped(ctx *cacontext.AutoscalingContext) (string, error) {
	if one.Pending == nil {
		return "", nil
	}
	template, _ := ctx.TemplateNodeInfoRegistry.GetNodeInfo(group)
	node, err := simulator.SanitizedNodeInfo(template, "0")
	if err != nil {
		return "", err
	}
	if err := ctx.ClusterSnapshot.AddNodeInfo(node); err != nil {
		return "", err
	}
	if refusal := ctx.ClusterSnapshot.SchedulePod(one.Pending, node.Node().Name); refusal != nil {
		return refusal.Error(), nil
	}
	return "", nil
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "error:", err)
	os.Exit(1)
}
