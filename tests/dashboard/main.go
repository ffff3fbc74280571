// Decodes a dashboard from standard input into Grafana's own types. Fails for a field of the dashboard, a panel, a
// variable or a query that Grafana does not have, for a value of another type, and for one that is missing.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

func main() {
	plugins.RegisterDefaultPlugins()
	text, err := io.ReadAll(os.Stdin)
	expect(err)
	var decoded dashboard.Dashboard
	expect(decoded.UnmarshalJSONStrict(text))
	expect(decoded.Validate())
}

func expect(err error) {
	// Without an error, these functions return an empty list in an error, which is not nil.
	if err != nil && err.Error() != "" {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
