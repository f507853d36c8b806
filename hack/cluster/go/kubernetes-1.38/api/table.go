package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"

	"sigs.k8s.io/yaml"
)

const usage = `usage: api-judge <CASES >ANSWERS
       api-judge table FOLDER VERSION=API-JUDGE=ALLOCATION-JUDGE...

table asks the judges of versions about what is in a folder, and prints a table for people: objects/ has
manifests, of which those with one name and kind in one folder are updates, one after the other; refused/
has manifests that should be refused; cases/ has questions for the allocators, one a line.`

// version is one release of Kubernetes, with the programs that ask its code.
type version struct{ number, api, allocation string }

var allocators = []string{"stable", "incubating", "experimental"}

func table(folder string, versions []version) {
	created, updated := manifests(filepath.Join(folder, "objects"))
	refused, _ := manifests(filepath.Join(folder, "refused"))
	fmt.Println("| Kubernetes | judge | asked about | result |")
	fmt.Println("| --- | --- | --- | --- |")
	for _, one := range versions {
		row(one, "API validation", fmt.Sprintf("%d new objects", len(created)), one.taken(created))
		row(one, "API validation", fmt.Sprintf("%d updates", len(updated)), one.taken(updated))
		row(one, "API validation", fmt.Sprintf("%d bad objects", len(refused)), one.refuses(refused))
	}
	cases, _ := filepath.Glob(filepath.Join(folder, "cases", "*"))
	for _, path := range cases {
		questions := lines(path)
		name := fmt.Sprintf("%d %s", len(questions), strings.TrimSuffix(filepath.Base(path), ".jsonl"))
		var first []decision
		for _, one := range versions {
			for _, allocator := range allocators {
				found := one.decide(questions, allocator)
				result := "the same"
				if strings.HasPrefix(found[0].Error, "internal error: no allocator available") {
					result = "cannot: it lacks a feature that is on by default"
				} else if first == nil {
					first, result = found, "others are compared with it"
				} else if different := differences(questions, first, found); different > 0 {
					result = fmt.Sprintf("the same but for %d", different)
				}
				row(one, allocator+" allocator", name, result)
			}
		}
	}
}

func row(of version, judge, asked, result string) {
	fmt.Printf("| %s | %s | %s | %s |\n", of.number, judge, asked, result)
}

// taken says what becomes of objects that should be stored as they are.
func (of version) taken(asked []question) string {
	wrong := 0
	for i, found := range ask[answer](of.api, marshalled(asked)) {
		if found.Error != "" || len(found.Warnings) > 0 {
			wrong++
			fmt.Fprintf(os.Stderr, "%s: %.200s: %s %q\n", of.number, asked[i].Object, found.Error, found.Warnings)
		}
	}
	if wrong > 0 {
		return fmt.Sprintf("%d refused", wrong)
	}
	return "all taken, no warning"
}

func (of version) refuses(asked []question) string {
	var passed []string
	for i, found := range ask[answer](of.api, marshalled(asked)) {
		if found.Error == "" {
			passed = append(passed, kindAndName(asked[i].Object))
		}
	}
	if len(passed) > 0 {
		return "taken: " + strings.Join(passed, ", ")
	}
	return "all refused"
}

// decision is what an allocator does with a case; texts of errors are for people.
type decision struct {
	Fits    bool            `json:"fits"`
	Devices json.RawMessage `json:"devices"`
	Error   string          `json:"error"`
}

func (one decision) outcome() any {
	switch {
	case strings.HasPrefix(one.Error, "invalid resource pools"):
		return "not on this node"
	case one.Error != "":
		return "given up"
	case !one.Fits:
		return "not on this node"
	}
	return string(one.Devices)
}

func (of version) decide(questions [][]byte, allocator string) []decision {
	asked := make([][]byte, len(questions))
	for i, one := range questions {
		asked[i] = fmt.Appendf(nil, `{"allocators":[%q],%s`, allocator, one[1:])
	}
	return ask[decision](of.allocation, asked)
}

func differences(questions [][]byte, first, second []decision) int {
	count := 0
	for i := range first {
		if !reflect.DeepEqual(first[i].outcome(), second[i].outcome()) {
			count++
			fmt.Fprintf(os.Stderr, "%s\n  %v %s\n  %v %s\n", questions[i],
				first[i].outcome(), first[i].Error, second[i].outcome(), second[i].Error)
		}
	}
	return count
}

func ask[T any](program string, asked [][]byte) []T {
	command := exec.Command(program)
	command.Stdin = bytes.NewReader(bytes.Join(asked, []byte("\n")))
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		fail(fmt.Errorf("%s: %w", program, err))
	}
	var found []T
	for _, line := range bytes.Split(bytes.TrimSpace(out), []byte("\n")) {
		var one T
		if err := json.Unmarshal(line, &one); err != nil {
			fail(err)
		}
		found = append(found, one)
	}
	if len(found) != len(asked) {
		fail(fmt.Errorf("%s answers %d of %d questions", program, len(found), len(asked)))
	}
	return found
}

func marshalled(asked []question) [][]byte {
	found := make([][]byte, len(asked))
	for i, one := range asked {
		text, err := json.Marshal(one)
		if err != nil {
			fail(err)
		}
		found[i] = text
	}
	return found
}

// manifests reads all objects below a folder: each as a new one, and as an update of the one before it.
func manifests(folder string) (created, updated []question) {
	var paths []string
	for _, depth := range []string{"*", "*/*"} {
		more, _ := filepath.Glob(filepath.Join(folder, depth+".yaml"))
		paths = append(paths, more...)
	}
	before := map[string]json.RawMessage{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			fail(err)
		}
		for _, document := range strings.Split("\n"+string(text), "\n---") {
			object, err := yaml.YAMLToJSON([]byte(document))
			if err != nil {
				fail(fmt.Errorf("%s: %w", path, err))
			}
			for _, object := range items(object) {
				created = append(created, question{Object: object})
				key := filepath.Dir(path) + kindAndName(object)
				if old := before[key]; old != nil && !bytes.Equal(old, object) {
					updated = append(updated, question{Object: object, Old: old})
				}
				before[key] = object
				if sick := tainted(object); sick != nil {
					updated = append(updated, question{Object: sick, Old: object}, question{Object: object, Old: sick})
				}
			}
		}
	}
	return created, updated
}

// items are the objects of a document: one, those of a List, or none. Kinds of others are left out.
func items(document []byte) (found []json.RawMessage) {
	var list struct {
		APIVersion, Kind string
		Items            []json.RawMessage
	}
	if err := json.Unmarshal(document, &list); err != nil {
		fail(err)
	}
	switch group, _, _ := strings.Cut(list.APIVersion, "/"); {
	case list.Kind == "List":
		return list.Items
	case list.Kind == "" || strings.HasSuffix(group, "nvidia.com"):
		return nil
	}
	return []json.RawMessage{document}
}

// tainted is a slice when its devices are sick; nil for other objects.
func tainted(object []byte) json.RawMessage {
	var slice map[string]any
	if err := json.Unmarshal(object, &slice); err != nil {
		fail(err)
	}
	spec, _ := slice["spec"].(map[string]any)
	devices, _ := spec["devices"].([]any)
	if slice["kind"] != "ResourceSlice" || len(devices) == 0 {
		return nil
	}
	for _, device := range devices {
		device.(map[string]any)["taints"] = []any{map[string]any{
			"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoExecute", "timeAdded": "2026-01-02T03:04:05Z",
		}}
	}
	text, err := json.Marshal(slice)
	if err != nil {
		fail(err)
	}
	return text
}

func kindAndName(object []byte) string {
	var known struct {
		Kind     string
		Metadata struct{ Name string }
	}
	if err := json.Unmarshal(object, &known); err != nil {
		fail(err)
	}
	return known.Kind + " " + known.Metadata.Name
}

func lines(path string) (found [][]byte) {
	file, err := os.Open(path)
	if err != nil {
		fail(err)
	}
	defer file.Close()
	reader := bufio.NewScanner(file)
	reader.Buffer(nil, 1<<24)
	for reader.Scan() {
		found = append(found, bytes.Clone(reader.Bytes()))
	}
	return found
}
