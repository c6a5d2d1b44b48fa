package pipeline

// FileSink drops files into a folder, named once and never changed.
type FileSink struct {
	Path   string `yaml:"path" weir:"required,location"`
	Format string `yaml:"format" weir:"enum=ndjson|csv|parquet"`
	// Compression is for ndjson and csv.
	Compression string `yaml:"compression" weir:"enum=none|gzip"`
	MaxFileSize Size   `yaml:"maxFileSize" weir:"min=1024,max=1073741824"`
}

// CompressionGzip is a value of FileSink.Compression.
const CompressionGzip = "gzip"

func (s *FileSink) setDefaults() {
	s.Format, s.Compression, s.MaxFileSize = "ndjson", "none", 64<<20
}

// Target implements External: the folder.
func (s *FileSink) Target() string { return s.Path }

// Rejects implements External: a folder refuses no rows.
func (*FileSink) Rejects() (string, string) { return RejectFail, "" }

func (s *FileSink) check(l *loader, p *Pipeline, _ *Query, key string) {
	if s.Format == "parquet" && s.Compression == CompressionGzip {
		l.faultKey(key+".compression", "compression: gzip is for ndjson and csv; Parquet files are compressed inside")
	}
	for _, o := range []struct{ path, what string }{{p.Warehouse, "warehouse"}, {p.CheckpointLocation, "checkpointLocation"}} {
		if s.Path != "" && o.path != "" && (inside(s.Path, o.path) || inside(o.path, s.Path)) {
			l.faultKey(key+".path", "path and %s lie inside each other: give the files a folder of their own", o.what)
		}
	}
}
