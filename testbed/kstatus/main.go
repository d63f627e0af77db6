// kstatus prints what Flux, Argo CD and kpt take the state of an object for.
//
// It reads a JSON list of objects from standard input and prints one line for each: status, tab, message. The
// test bed otherwise has no Go source: the library has no command that computes the status of an object
// without a cluster and an inventory.
package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

func main() {
	input, err := io.ReadAll(os.Stdin)
	exitOn(err, "failed to read the objects")
	var objects []interface{}
	// This decoder keeps integers, which the library expects.
	exitOn(json.Unmarshal(input, &objects), "failed to parse the objects")
	for _, object := range objects {
		result, err := status.Compute(&unstructured.Unstructured{Object: object.(map[string]interface{})})
		exitOn(err, "failed to compute the status")
		fmt.Printf("%s\t%s\n", result.Status, strings.ReplaceAll(result.Message, "\n", " "))
	}
}

func exitOn(err error, what string) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", what, err)
		os.Exit(1)
	}
}
