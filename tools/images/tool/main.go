// image builds, pushes and serves container images without a container engine.
//
//	image build -t NAME -o TAR [--base TAR] [--add SRC:DST ...] [--entrypoint WORD ...] [--env K=V ...] [--user U] [--workdir D]
//	image push [--insecure] TAR NAME      with the credentials of the user's docker configuration
//	image registry --listen ADDRESS --dir DIR
//
// A build adds one layer to its base. The same files make the same digest: times and owners are left out.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/crane"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func main() {
	commands := map[string]func([]string) error{"build": build, "push": push, "registry": serve}
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: image build|push|registry ...")
		os.Exit(2)
	}
	if err := commands[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

type words []string

func (w *words) String() string         { return strings.Join(*w, " ") }
func (w *words) Set(value string) error { *w = append(*w, value); return nil }

func build(args []string) error {
	flags := flag.NewFlagSet("build", flag.ExitOnError)
	var adds, entrypoint, env words
	tag := flags.String("t", "", "name of the image")
	out := flags.String("o", "", "archive to write")
	base := flags.String("base", "", "archive of the image to start from")
	user := flags.String("user", "", "")
	workdir := flags.String("workdir", "", "")
	flags.Var(&adds, "add", "SRC:DST, a file or a directory")
	flags.Var(&entrypoint, "entrypoint", "")
	flags.Var(&env, "env", "")
	flags.Parse(args)

	var image v1.Image = empty.Image
	var err error
	if *base != "" {
		if image, err = tarball.ImageFromPath(*base, nil); err != nil {
			return err
		}
	}
	if len(adds) > 0 {
		archive, err := os.CreateTemp("", "layer-*.tar")
		if err != nil {
			return err
		}
		defer os.Remove(archive.Name())
		if err := errors.Join(writeLayer(archive, adds), archive.Close()); err != nil {
			return err
		}
		layer, err := tarball.LayerFromFile(archive.Name(), tarball.WithCompressionLevel(gzip.BestSpeed))
		if err != nil {
			return err
		}
		if image, err = mutate.AppendLayers(image, layer); err != nil {
			return err
		}
	}
	config, err := image.ConfigFile()
	if err != nil {
		return err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", "amd64"
	if *base == "" {
		config.Config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	}
	config.Config.Env = append(config.Config.Env, env...)
	if len(entrypoint) > 0 {
		config.Config.Entrypoint, config.Config.Cmd = entrypoint, nil
	}
	if *user != "" {
		config.Config.User = *user
	}
	if *workdir != "" {
		config.Config.WorkingDir = *workdir
	}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return err
	}
	reference, err := name.ParseReference(*tag)
	if err != nil {
		return err
	}
	return tarball.WriteToFile(*out, reference, image)
}

func writeLayer(to io.Writer, adds []string) error {
	layer := tar.NewWriter(to)
	for _, add := range adds {
		source, target, ok := strings.Cut(add, ":")
		if !ok {
			return fmt.Errorf("--add %s: want SRC:DST", add)
		}
		if err := addTree(layer, source, target); err != nil {
			return err
		}
	}
	return layer.Close()
}

func addTree(layer *tar.Writer, source, target string) error {
	return filepath.WalkDir(source, func(p string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		inside, err := filepath.Rel(source, p)
		if err != nil {
			return err
		}
		link := ""
		if info.Mode()&os.ModeSymlink != 0 {
			if link, err = os.Readlink(p); err != nil {
				return err
			}
		}
		header, err := tar.FileInfoHeader(info, link)
		if err != nil {
			return err
		}
		header.Name = strings.TrimPrefix(path.Join(target, inside), "/")
		header.ModTime, header.AccessTime, header.ChangeTime = time.Unix(0, 0), time.Time{}, time.Time{}
		header.Uid, header.Gid, header.Uname, header.Gname = 0, 0, "", ""
		if header.Name == "" || header.Name == "." {
			return nil
		}
		if info.IsDir() {
			header.Name += "/"
		}
		if err := layer.WriteHeader(header); err != nil || !info.Mode().IsRegular() {
			return err
		}
		file, err := os.Open(p)
		if err != nil {
			return err
		}
		defer file.Close()
		_, err = io.Copy(layer, file)
		return err
	})
}

func push(args []string) error {
	flags := flag.NewFlagSet("push", flag.ExitOnError)
	insecure := flags.Bool("insecure", false, "the registry may speak plain HTTP")
	flags.Parse(args)
	if flags.NArg() != 2 {
		return errors.New("push: want TAR NAME")
	}
	image, err := tarball.ImageFromPath(flags.Arg(0), nil)
	if err != nil {
		return err
	}
	options := []crane.Option{}
	if *insecure {
		options = append(options, crane.Insecure)
	}
	if err := crane.Push(image, flags.Arg(1), options...); err != nil {
		return err
	}
	digest, err := image.Digest()
	fmt.Printf("%s@%s\n", flags.Arg(1), digest)
	return err
}

// serve is a registry over plain HTTP that still has its images after a restart.
func serve(args []string) error {
	flags := flag.NewFlagSet("registry", flag.ExitOnError)
	listen := flags.String("listen", "127.0.0.1:5000", "address")
	dir := flags.String("dir", "", "where the images are kept")
	flags.Parse(args)
	blobs, manifests := filepath.Join(*dir, "blobs"), filepath.Join(*dir, "manifests")
	if err := errors.Join(os.MkdirAll(blobs, 0o755), os.MkdirAll(manifests, 0o755)); err != nil {
		return err
	}
	// The library keeps blobs on the disk and manifests in memory: these are put again at a start.
	inner := registry.New(registry.WithBlobHandler(registry.NewDiskBlobHandler(blobs)))
	if err := replay(inner, manifests); err != nil {
		return err
	}
	log.Printf("registry on %s", *listen)
	return http.ListenAndServe(*listen, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/manifests/") {
			body, err := io.ReadAll(r.Body)
			if err == nil {
				err = keep(manifests, manifest{r.URL.Path, r.Header.Get("Content-Type"), body})
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		inner.ServeHTTP(w, r)
	}))
}

type manifest struct {
	Path, ContentType string
	Body              []byte
}

func keep(dir string, m manifest) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, strings.ReplaceAll(m.Path, "/", "_")), text, 0o644)
}

func replay(to http.Handler, dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var m manifest
		if err := json.Unmarshal(text, &m); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		request := httptest.NewRequest(http.MethodPut, m.Path, bytes.NewReader(m.Body))
		request.Header.Set("Content-Type", m.ContentType)
		answer := httptest.NewRecorder()
		to.ServeHTTP(answer, request)
		if answer.Code != http.StatusCreated {
			return fmt.Errorf("%s: %s", file, answer.Body)
		}
	}
	return nil
}
