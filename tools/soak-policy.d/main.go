// Answers the requests of tools/soak-policy with MinIO's policy package. The program has the same input
// and output format as base/policy/examples/decide.rs.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/minio/pkg/v3/policy"
)

type request struct {
	Policy string              `json:"policy"`
	Bucket string              `json:"bucket"`
	Key    *string             `json:"key"`
	Action string              `json:"action"`
	User   *string             `json:"user"`
	Owner  bool                `json:"owner"`
	Values map[string][]string `json:"values"`
}

func answer(line []byte) string {
	var asked request
	if err := json.Unmarshal(line, &asked); err != nil {
		return "malformed: " + err.Error()
	}
	parsed, err := policy.ParseBucketPolicyConfig(strings.NewReader(asked.Policy), asked.Bucket)
	if err != nil {
		return "malformed: " + strings.ReplaceAll(err.Error(), "\n", " ")
	}
	// MinIO names condition keys without their prefix.
	values := map[string][]string{}
	for key, list := range asked.Values {
		values[key[strings.IndexByte(key, ':')+1:]] = list
	}
	args := policy.BucketPolicyArgs{
		Action:          policy.Action("s3:" + asked.Action),
		BucketName:      asked.Bucket,
		ConditionValues: values,
		IsOwner:         asked.Owner,
	}
	if asked.User != nil {
		args.AccountName = *asked.User
	}
	if asked.Key != nil {
		args.ObjectName = *asked.Key
	}
	if parsed.IsAllowed(args) {
		return "allow"
	}
	return "deny"
}

func main() {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(make([]byte, 1<<20), 1<<24)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for in.Scan() {
		fmt.Fprintln(out, answer(in.Bytes()))
	}
}
