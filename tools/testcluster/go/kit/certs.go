package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"flag"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const kubeconfig = `apiVersion: v1
kind: Config
current-context: knafka
clusters: [{name: knafka, cluster: {server: "%s", certificate-authority-data: %s}}]
users: [{name: %[3]s, user: {client-certificate-data: %[4]s, client-key-data: %[5]s}}]
contexts: [{name: knafka, context: {cluster: knafka, user: %[3]s}}]
`

// authority signs certificates and writes each as NAME.crt and NAME.key into a directory.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// kit certs --dir DIR --server URL --node NAME --san A,B: keys, certificates and kubeconfigs of a
// cluster that is thrown away; there is no other secret in it.
func makeCertificates() {
	flags := flag.NewFlagSet("certs", flag.ExitOnError)
	dir := flags.String("dir", "pki", "where to write")
	server := flags.String("server", "", "URL of the API server")
	node := flags.String("node", "", "name of the node")
	names := flags.String("san", "", "names and addresses of API server and node")
	die(flags.Parse(os.Args[1:]))
	die(os.MkdirAll(*dir, 0o700))

	ca, frontProxy := newAuthority(*dir, "ca"), newAuthority(*dir, "front-proxy-ca")
	hosts := append(strings.Split(*names, ","), "localhost", "127.0.0.1",
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
	ca.issue("apiserver", subject("kube-apiserver"), hosts...)
	ca.issue("kubelet-serving", subject(*node), hosts...)
	ca.issue("apiserver-kubelet-client", subject("kube-apiserver-kubelet-client", "system:masters"))
	frontProxy.issue("front-proxy-client", subject("front-proxy-client"))

	accounts, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	die(err)
	write(*dir, "sa.key", encodeKey(accounts))
	public, err := x509.MarshalPKIXPublicKey(&accounts.PublicKey)
	die(err)
	write(*dir, "sa.pub", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}))

	for user, of := range map[string]pkix.Name{
		"admin":              subject("admin", "system:masters"),
		"controller-manager": subject("system:kube-controller-manager"),
		"scheduler":          subject("system:kube-scheduler"),
		"proxy":              subject("system:kube-proxy"),
		"kubelet":            subject("system:node:"+*node, "system:nodes"),
		"coredns":            subject("coredns", "system:masters"),
		"ingress":            subject("ingress", "system:masters"),
	} {
		cert, key := ca.issue(user, of)
		b64 := base64.StdEncoding.EncodeToString
		text := fmt.Sprintf(kubeconfig, *server, b64(encodeCertificate(ca.cert.Raw)), user, b64(cert), b64(key))
		write(*dir, user+".kubeconfig", []byte(text))
	}
}

func newAuthority(dir, name string) authority {
	cert := template(subject(name))
	cert.IsCA, cert.BasicConstraintsValid, cert.ExtKeyUsage = true, true, nil
	cert.KeyUsage |= x509.KeyUsageCertSign
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	die(err)
	signed, err := x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
	die(err)
	write(dir, name+".crt", encodeCertificate(signed))
	write(dir, name+".key", encodeKey(key))
	cert, err = x509.ParseCertificate(signed)
	die(err)
	return authority{dir, cert, key}
}

func (a authority) issue(name string, of pkix.Name, hosts ...string) (certificate, key []byte) {
	cert := template(of)
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			cert.IPAddresses = append(cert.IPAddresses, ip)
		} else {
			cert.DNSNames = append(cert.DNSNames, host)
		}
	}
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	die(err)
	signed, err := x509.CreateCertificate(rand.Reader, cert, a.cert, &own.PublicKey, a.key)
	die(err)
	certificate, key = encodeCertificate(signed), encodeKey(own)
	write(a.dir, name+".crt", certificate)
	write(a.dir, name+".key", key)
	return certificate, key
}

func subject(name string, groups ...string) pkix.Name {
	return pkix.Name{CommonName: name, Organization: groups}
}

func template(of pkix.Name) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	die(err)
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      of,
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().AddDate(10, 0, 0),
		KeyUsage:     x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
}

func encodeKey(key *ecdsa.PrivateKey) []byte {
	der, err := x509.MarshalECPrivateKey(key)
	die(err)
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
}

func encodeCertificate(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func write(dir, name string, content []byte) {
	die(os.WriteFile(filepath.Join(dir, name), content, 0o600))
}
