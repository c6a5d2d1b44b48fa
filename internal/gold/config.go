package gold

import (
	"fmt"
	"slices"
)

// Config is how a model is kept.
type Config struct {
	Materialized string
	UniqueKey    []string
	Tags         []string
	off          bool
}

// ignored are settings that change nothing here.
var ignored = []string{"meta", "docs", "persist_docs", "description", "group", "access", "tests", "data_tests", "columns", "full_refresh", "contract", "config"}

// merge lays settings over c.
func (c *Config) merge(over map[string]any) error {
	for k, v := range over {
		if err := c.set(k, v); err != nil {
			return err
		}
	}
	return nil
}

func (c *Config) set(key string, v any) error {
	switch key {
	case "materialized":
		s, _ := v.(string)
		if !slices.Contains([]string{View, Table, Incremental, Ephemeral}, s) {
			return fmt.Errorf("materialized %v: want view, table, incremental or ephemeral", v)
		}
		c.Materialized = s
	case "unique_key":
		keys, err := words(v)
		if err != nil {
			return fmt.Errorf("unique_key: %w", err)
		}
		c.UniqueKey = keys
	case "enabled":
		b, ok := v.(bool)
		if !ok {
			return fmt.Errorf("enabled %v: want true or false", v)
		}
		c.off = !b
	case "tags":
		tags, err := words(v)
		if err != nil {
			return fmt.Errorf("tags: %w", err)
		}
		c.Tags = append(c.Tags, tags...)
	case "incremental_strategy":
		if s, _ := v.(string); s != "append" && s != "delete+insert" {
			return fmt.Errorf("incremental_strategy %v: want append (without unique_key) or delete+insert", v)
		}
	case "on_schema_change":
		// A changed model is built from nothing: there is no old column to keep.
	default:
		if !slices.Contains(ignored, key) {
			return fmt.Errorf("setting %q is not known here (materialized, unique_key, enabled, tags, incremental_strategy)", key)
		}
	}
	return nil
}

// words is a string or a list of strings.
func words(v any) ([]string, error) {
	switch x := v.(type) {
	case nil:
		return nil, nil
	case string:
		return []string{x}, nil
	case []string:
		return x, nil
	case []any:
		var out []string
		for _, e := range x {
			s, ok := e.(string)
			if !ok {
				return nil, fmt.Errorf("%v is not a string", e)
			}
			out = append(out, s)
		}
		return out, nil
	}
	return nil, fmt.Errorf("%v is neither a string nor a list of strings", v)
}
