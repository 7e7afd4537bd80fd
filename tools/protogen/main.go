// Protogen makes Go code of .proto files, which it compiles itself, with protoc-gen-go and
// protoc-gen-go-grpc of this module.
//
//	go run -C tools ./protogen DIRECTORY FILE...
//
// The files are named as they lie in the directory, where the code goes too.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

var plugins = []string{
	"google.golang.org/protobuf/cmd/protoc-gen-go",
	"google.golang.org/grpc/cmd/protoc-gen-go-grpc",
}

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: protogen DIRECTORY FILE...")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir string, files []string) error {
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{dir}}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	compiled, err := compiler.Compile(ctx, files...)
	if err != nil {
		return err
	}
	parameter := "paths=source_relative"
	request := &pluginpb.CodeGeneratorRequest{FileToGenerate: files, Parameter: &parameter}
	seen := map[string]bool{}
	for _, f := range compiled {
		request.ProtoFile = appendFile(request.ProtoFile, f, seen)
	}
	for _, plugin := range plugins {
		if err := generate(ctx, plugin, request, dir); err != nil {
			return fmt.Errorf("%s: %w", plugin, err)
		}
	}
	return nil
}

// appendFile appends a file behind those that it imports.
func appendFile(all []*descriptorpb.FileDescriptorProto, f protoreflect.FileDescriptor, seen map[string]bool) []*descriptorpb.FileDescriptorProto {
	if seen[f.Path()] {
		return all
	}
	seen[f.Path()] = true
	for i := range f.Imports().Len() {
		all = appendFile(all, f.Imports().Get(i).FileDescriptor, seen)
	}
	return append(all, protoutil.ProtoFromFileDescriptor(f))
}

// generate runs a plugin, by protoc's protocol for them, and writes the files that it
// answers.
func generate(ctx context.Context, plugin string, request *pluginpb.CodeGeneratorRequest, dir string) error {
	in, err := proto.Marshal(request)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", "run", plugin)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, os.Stderr
	if err := cmd.Run(); err != nil {
		return err
	}
	response := new(pluginpb.CodeGeneratorResponse)
	if err := proto.Unmarshal(out.Bytes(), response); err != nil {
		return err
	}
	if response.Error != nil {
		return errors.New(*response.Error)
	}
	for _, f := range response.GetFile() {
		if err := os.WriteFile(filepath.Join(dir, f.GetName()), []byte(f.GetContent()), 0o644); err != nil {
			return err
		}
	}
	return nil
}
