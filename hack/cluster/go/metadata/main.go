// read-metadata-1.37 reads files with device metadata as Go programs in containers do.
//
// In: a file on stdin; or the name of a claim, or what the container's pod calls one from a template, and
// that of a request, by which files are found where containers have them. Out: on stdout a JSON object
// with what was found, and what the API's validation says of it. The library is Kubernetes' own.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/dynamic-resource-allocation/api/metadata"
	"k8s.io/dynamic-resource-allocation/api/metadata/install"
	"k8s.io/dynamic-resource-allocation/api/metadata/v1beta1"
	"k8s.io/dynamic-resource-allocation/devicemetadata"
)

const (
	driver = "gpu.nvidia.com"
	usage  = "usage: read-metadata-1.37 <FILE | read-metadata-1.37 claim|template [where] NAME REQUEST"
)

type answer struct {
	// Version is the first in the file that the library knows.
	Version string `json:"version"`
	// Invalid says which rules of the API it breaks.
	Invalid string                  `json:"invalid,omitempty"`
	Found   *v1beta1.DeviceMetadata `json:"found"`
}

// both is what a container finds by the driver's name, and without it.
type both struct {
	Found  *v1beta1.DeviceMetadata `json:"found"`
	Merged *v1beta1.DeviceMetadata `json:"merged"`
}

// kind is one of the two ways by which a container has a claim.
type kind struct {
	where    func(driver, name, request string) string
	byDriver func(driver, name, request string) (*metadata.DeviceMetadata, error)
	merged   func(name, request string) (*metadata.DeviceMetadata, error)
}

var kinds = map[string]kind{
	"claim": {
		where:    metadata.ResourceClaimFilePath,
		byDriver: devicemetadata.ReadResourceClaimMetadataWithDriverName,
		merged:   devicemetadata.ReadResourceClaimMetadata,
	},
	"template": {
		where:    metadata.ResourceClaimTemplateFilePath,
		byDriver: devicemetadata.ReadResourceClaimTemplateMetadataWithDriverName,
		merged:   devicemetadata.ReadResourceClaimTemplateMetadata,
	},
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(words []string) error {
	if len(words) == 0 {
		return stream(os.Stdin)
	}
	one, known := kinds[words[0]]
	switch {
	case known && len(words) == 4 && words[1] == "where":
		fmt.Println(one.where(driver, words[2], words[3]))
		return nil
	case known && len(words) == 3:
		return one.read(words[1], words[2])
	}
	return errors.New(usage)
}

func stream(in io.Reader) error {
	var (
		found   metadata.DeviceMetadata
		invalid error
		gvk     schema.GroupVersionKind
	)
	err := devicemetadata.DecodeMetadataFromStream(
		json.NewDecoder(in), &found,
		devicemetadata.DecodeMetadataWithValidationResult(&invalid),
		devicemetadata.DecodeMetadataStoreGVKResult(&gvk),
	)
	if err != nil {
		return err
	}
	said := answer{Version: gvk.Version}
	if invalid != nil {
		said.Invalid = invalid.Error()
	}
	if said.Found, err = versioned(&found); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(said)
}

func (one kind) read(name, request string) error {
	byDriver, err := one.byDriver(driver, name, request)
	if err != nil {
		return err
	}
	merged, err := one.merged(name, request)
	if err != nil {
		return err
	}
	var said both
	if said.Found, err = versioned(byDriver); err != nil {
		return err
	}
	if said.Merged, err = versioned(merged); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(said)
}

// versioned brings the library's own type, which says neither version nor kind, into one that has a form
// as JSON. All versions have the same fields.
func versioned(found *metadata.DeviceMetadata) (*v1beta1.DeviceMetadata, error) {
	var made v1beta1.DeviceMetadata
	if err := install.NewScheme().Convert(found, &made, nil); err != nil {
		return nil, err
	}
	return &made, nil
}
