package objstore

import (
	"fmt"
	"path"
	"strings"
)

// tempPrefix begins the name of every temporary file of a store on a file
// system. List hides such names and CheckKey refuses them.
const tempPrefix = ".weir-tmp-"

// keyBytesMax bounds a key; file systems and object stores both take as much.
const keyBytesMax = 1024

// CheckKey refuses keys that would leave the store's root, that two stores
// would understand differently, or that look like a temporary file.
func CheckKey(key string) error {
	switch {
	case key == "", len(key) > keyBytesMax:
		return fmt.Errorf("%w: %q is empty or longer than %d bytes", ErrBadKey, key, keyBytesMax)
	case path.IsAbs(key), path.Clean(key) != key, key == ".", key == "..", strings.HasPrefix(key, "../"):
		return fmt.Errorf("%w: %q is not a clean relative path", ErrBadKey, key)
	case strings.ContainsAny(key, "\x00\\"):
		return fmt.Errorf("%w: %q contains NUL or a backslash", ErrBadKey, key)
	}
	for _, part := range strings.Split(key, "/") {
		if strings.HasPrefix(part, tempPrefix) {
			return fmt.Errorf("%w: %q is the name of a temporary file", ErrBadKey, key)
		}
	}
	return nil
}
