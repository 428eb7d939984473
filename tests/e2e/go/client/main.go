// Command watcher-client reads GET /watcher with the Go load-watcher's own client and prints what it decoded.
//
// It is the Go side of a wire test: the Trimaran plugins read the service through exactly this client.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/paypal/load-watcher/pkg/watcher/api"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: watcher-client ADDRESS, such as http://127.0.0.1:2020")
		os.Exit(2)
	}
	client, err := api.NewServiceClient(os.Args[1])
	if err != nil {
		fail("unable to create the client", err)
	}
	metrics, err := client.GetLatestWatcherMetrics()
	if err != nil {
		fail("unable to read the watcher", err)
	}
	// encoding/json writes a float64 in its shortest exact form, so nothing is lost on the way to the test.
	if err := json.NewEncoder(os.Stdout).Encode(metrics); err != nil {
		fail("unable to print the metrics", err)
	}
}

func fail(what string, err error) {
	fmt.Fprintf(os.Stderr, "%s: %v\n", what, err)
	os.Exit(1)
}
