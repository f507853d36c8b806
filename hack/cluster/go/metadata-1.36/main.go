// read-metadata-1.36 reads a file with device metadata as Go programs made for Kubernetes 1.36 do.
//
// In: a file on stdin. Out: on stdout a JSON object with what was found. The library is Kubernetes' own of
// that version: it knows v1alpha1 alone, and has no validation.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/api/metadata/v1alpha1"
	"k8s.io/dynamic-resource-allocation/devicemetadata"
)

type answer struct {
	Version string                   `json:"version"`
	Found   *v1alpha1.DeviceMetadata `json:"found"`
}

func main() {
	var found v1alpha1.DeviceMetadata
	if err := devicemetadata.DecodeMetadataFromStream(json.NewDecoder(os.Stdin), &found); err != nil {
		fail(err)
	}
	said := answer{Version: found.GroupVersionKind().Version, Found: &found}
	found.TypeMeta = metav1.TypeMeta{}
	if err := json.NewEncoder(os.Stdout).Encode(said); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
