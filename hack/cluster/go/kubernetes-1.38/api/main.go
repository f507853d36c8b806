// api-judge says what an API server answers when an object is created, or updated.
//
// In: on stdin one JSON object for each case: the object, and the one that it replaces if there is one; a
// subresource `status`. Out: on stdout one JSON object for each case, in their order: the error, if the
// object is refused, and warnings. Defaults, strategies and validation are those of kube-apiserver, with
// its feature gates as they are by default. There is no admission.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"
	namespaceclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/resource/install"
	"k8s.io/kubernetes/pkg/registry/apps/deployment"
	"k8s.io/kubernetes/pkg/registry/apps/statefulset"
	"k8s.io/kubernetes/pkg/registry/batch/cronjob"
	"k8s.io/kubernetes/pkg/registry/batch/job"
	"k8s.io/kubernetes/pkg/registry/core/configmap"
	"k8s.io/kubernetes/pkg/registry/core/namespace"
	"k8s.io/kubernetes/pkg/registry/core/pod"
	"k8s.io/kubernetes/pkg/registry/resource/deviceclass"
	"k8s.io/kubernetes/pkg/registry/resource/devicetaintrule"
	"k8s.io/kubernetes/pkg/registry/resource/resourceclaim"
	"k8s.io/kubernetes/pkg/registry/resource/resourceclaimtemplate"
	"k8s.io/kubernetes/pkg/registry/resource/resourceslice"
)

type strategy interface {
	rest.RESTCreateStrategy
	rest.RESTUpdateStrategy
}

// namespaces has every namespace, with the label that admin access needs.
type namespaces struct {
	namespaceclient.NamespaceInterface
}

func (namespaces) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.Namespace, error) {
	labels := map[string]string{"resource.kubernetes.io/admin-access": "true"}
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, nil
}

var (
	claims     = resourceclaim.NewStrategy(namespaces{}, nil)
	strategies = map[string]strategy{
		"ConfigMap":             configmap.Strategy,
		"CronJob":               cronjob.Strategy,
		"Deployment":            deployment.Strategy,
		"DeviceClass":           deviceclass.Strategy,
		"DeviceTaintRule":       devicetaintrule.Strategy,
		"Job":                   job.Strategy,
		"Namespace":             namespace.Strategy,
		"Pod":                   pod.Strategy,
		"ResourceClaim":         claims,
		"ResourceClaimTemplate": resourceclaimtemplate.NewStrategy(namespaces{}),
		"ResourceSlice":         resourceslice.Strategy,
		"StatefulSet":           statefulset.Strategy,
	}
	// As the API server reads what kubectl sends: unknown fields and duplicates are errors.
	strict = serializer.NewCodecFactory(legacyscheme.Scheme, serializer.EnableStrict)
)

type question struct {
	Object      json.RawMessage `json:"object"`
	Old         json.RawMessage `json:"old,omitempty"`
	Subresource string          `json:"subresource,omitempty"`
}

type answer struct {
	Error    string   `json:"error,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
}

// AddWarning makes an answer the recorder of warnings.
func (one *answer) AddWarning(_, text string) { one.Warnings = append(one.Warnings, text) }

func main() {
	if len(os.Args) > 3 && os.Args[1] == "table" {
		var versions []version
		for _, text := range os.Args[3:] {
			part := strings.Split(text, "=")
			versions = append(versions, version{part[0], part[1], part[2]})
		}
		table(os.Args[2], versions)
		return
	} else if len(os.Args) > 1 {
		fmt.Println(usage)
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
		found := &answer{}
		if err := one.judge(found); err != nil {
			found.Error = err.Error()
		}
		if err := out.Encode(found); err != nil {
			fail(err)
		}
	}
}

func (one question) judge(found *answer) error {
	object, kind, err := read(one.Object)
	if err != nil {
		return err
	}
	by, known := strategies[kind.Kind]
	if !known {
		return fmt.Errorf("no strategy for %s", kind.Kind)
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return err
	}
	if by.NamespaceScoped() && accessor.GetNamespace() == "" {
		accessor.SetNamespace("default")
	}
	ctx := request.WithNamespace(context.Background(), accessor.GetNamespace())
	ctx = request.WithRequestInfo(ctx, &request.RequestInfo{
		APIGroup: kind.Group, APIVersion: kind.Version, Resource: strings.ToLower(kind.Kind) + "s", Subresource: one.Subresource,
	})
	ctx = warning.WithWarningRecorder(ctx, found)
	if len(one.Old) == 0 {
		if accessor.GetName() == "" {
			accessor.SetName(accessor.GetGenerateName() + "made")
		}
		rest.FillObjectMetaSystemFields(accessor)
		return rest.BeforeCreate(by, ctx, object)
	}
	old, _, err := read(one.Old)
	if err != nil {
		return err
	}
	stored, err := meta.Accessor(old)
	if err != nil {
		return err
	}
	stored.SetNamespace(accessor.GetNamespace())
	stored.SetResourceVersion("1")
	accessor.SetResourceVersion("1")
	if one.Subresource == "status" && kind.Kind == "ResourceClaim" {
		return rest.BeforeUpdate(resourceclaim.NewStatusStrategy(claims), ctx, object, old)
	}
	return rest.BeforeUpdate(by, ctx, object, old)
}

// read makes an object of the API server's own types, with defaults.
func read(text []byte) (runtime.Object, *schema.GroupVersionKind, error) {
	versioned, kind, err := strict.UniversalDeserializer().Decode(text, nil, nil)
	if err != nil {
		return nil, nil, err
	}
	legacyscheme.Scheme.Default(versioned)
	object, err := legacyscheme.Scheme.ConvertToVersion(versioned, runtime.InternalGroupVersioner)
	return object, kind, err
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "error:", err)
	os.Exit(1)
}
