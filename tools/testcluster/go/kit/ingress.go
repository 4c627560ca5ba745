package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"log"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	ingressClass     = "kit.ingress.networking.knative.dev"
	noEndpoints      = 30 * time.Second // a request waits this long for its first pod or the activator
	dialAttempts     = 5                // a pod that has just gone refuses; another one is asked then
	replayableLength = 1 << 16          // bytes; a body up to here can be sent again on a closed connection
)

var ingressResource = schema.GroupVersionResource{Group: "networking.internal.knative.dev", Version: "v1alpha1", Resource: "ingresses"}

// knativeIngress is what we use of Knative's Ingress; its Go types would bring a second client-go.
type knativeIngress struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Rules []struct {
			Hosts      []string `json:"hosts"`
			Visibility string   `json:"visibility"`
			HTTP       struct {
				Paths []path `json:"paths"`
			} `json:"http"`
		} `json:"rules"`
	} `json:"spec"`
	Status struct {
		ObservedGeneration int64              `json:"observedGeneration"`
		Conditions         []metav1.Condition `json:"conditions"`
	} `json:"status"`
}

type path struct {
	Path          string                            `json:"path"`
	RewriteHost   string                            `json:"rewriteHost"`
	Headers       map[string]struct{ Exact string } `json:"headers"`
	AppendHeaders map[string]string                 `json:"appendHeaders"`
	Splits        []split                           `json:"splits"`
}

type split struct {
	ServiceNamespace string             `json:"serviceNamespace"`
	ServiceName      string             `json:"serviceName"`
	ServicePort      intstr.IntOrString `json:"servicePort"`
	Percent          int                `json:"percent"`
	AppendHeaders    map[string]string  `json:"appendHeaders"`
}

// routes are immutable: a change swaps all of them, and requests under way keep what they have.
type routes struct{ public, private map[string][]path }

type ingress struct {
	client    dynamic.Interface
	listed    cache.GenericLister
	services  corelisters.ServiceLister
	endpoints corelisters.EndpointsLister
	routes    atomic.Pointer[routes]
	status    map[string]any
	private   string // our own address, and the name that leads there
	domain    string
	http1     *http.Transport
	http2     *http.Transport
}

// kit ingress --kubeconfig FILE --public IP:PORT --private IP:PORT --private-domain NAME:
// Knative's ingress, an HTTP/1.1 and h2c reverse proxy on the node. Not for TLS.
func runIngress() {
	flags := flag.NewFlagSet("ingress", flag.ExitOnError)
	config := flags.String("kubeconfig", "", "")
	public := flags.String("public", "", "address for rules with visibility ExternalIP")
	private := flags.String("private", "", "address for all rules")
	privateDomain := flags.String("private-domain", "", "name by which pods reach the private address")
	die(flags.Parse(os.Args[1:]))

	access, err := clientcmd.BuildConfigFromFlags("", *config)
	die(err)
	access.WarningHandler = rest.NoWarnings{} // Endpoints are deprecated, yet what Knative writes
	core := informers.NewSharedInformerFactory(kubernetes.NewForConfigOrDie(access), 0)
	client := dynamic.NewForConfigOrDie(access)
	custom := dynamicinformer.NewDynamicSharedInformerFactory(client, 0)
	publicHost, _, err := net.SplitHostPort(*public)
	die(err)
	in := &ingress{
		client:    client,
		listed:    custom.ForResource(ingressResource).Lister(),
		services:  core.Core().V1().Services().Lister(),
		endpoints: core.Core().V1().Endpoints().Lister(),
		private:   *private,
		domain:    *privateDomain,
		status: map[string]any{
			"publicLoadBalancer":  map[string]any{"ingress": []any{map[string]any{"ip": publicHost}}},
			"privateLoadBalancer": map[string]any{"ingress": []any{map[string]any{"domainInternal": *privateDomain}}},
		},
		http1: transport(func(p *http.Protocols) { p.SetHTTP1(true) }),
		http2: transport(func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) }),
	}
	in.routes.Store(&routes{})

	changed := make(chan struct{}, 1)
	change := func(any) {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	_, err = custom.ForResource(ingressResource).Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: change, DeleteFunc: change, UpdateFunc: func(_, now any) { change(now) },
	})
	die(err)
	ctx := context.Background()
	core.Start(ctx.Done())
	custom.Start(ctx.Done())
	core.WaitForCacheSync(ctx.Done())
	custom.WaitForCacheSync(ctx.Done())

	listen := func(address string, of func(*routes) map[string][]path) {
		var protocols http.Protocols
		protocols.SetHTTP1(true)
		protocols.SetUnencryptedHTTP2(true)
		server := &http.Server{Addr: address, Protocols: &protocols, Handler: in.handler(of)}
		log.Fatal(server.ListenAndServe())
	}
	go listen(*public, func(r *routes) map[string][]path { return r.public })
	go listen(*private, func(r *routes) map[string][]path { return r.private })
	for range changed {
		if err := in.reconcile(ctx); err != nil {
			log.Print(err)
			time.AfterFunc(time.Second, func() { change(nil) })
		}
	}
}

func transport(enable func(*http.Protocols)) *http.Transport {
	var protocols http.Protocols
	enable(&protocols)
	return &http.Transport{
		Protocols:           &protocols,
		DialContext:         (&net.Dialer{Timeout: 2 * time.Second}).DialContext,
		MaxIdleConnsPerHost: 1000,
		IdleConnTimeout:     30 * time.Second,
		DisableCompression:  true,
	}
}

// reconcile swaps the routes first and says Ready afterwards: a Route that is Ready is served.
func (in *ingress) reconcile(ctx context.Context) error {
	objects, err := in.listed.List(labels.Everything())
	if err != nil {
		return err
	}
	ours := []knativeIngress{}
	for _, object := range objects {
		var each knativeIngress
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.(*unstructured.Unstructured).Object, &each); err != nil {
			return err
		}
		if each.Annotations["networking.knative.dev/ingress.class"] == ingressClass && each.DeletionTimestamp == nil {
			ours = append(ours, each)
		}
	}
	next := &routes{public: map[string][]path{}, private: map[string][]path{}}
	for _, each := range ours {
		for _, rule := range each.Spec.Rules {
			// The most particular first: those that match headers, then the longer path.
			paths := slices.Clone(rule.HTTP.Paths)
			slices.SortStableFunc(paths, func(a, b path) int {
				return 1000*(len(b.Headers)-len(a.Headers)) + len(b.Path) - len(a.Path)
			})
			for _, host := range rule.Hosts {
				next.private[host] = append(next.private[host], paths...)
				if rule.Visibility != "ClusterLocal" {
					next.public[host] = append(next.public[host], paths...)
				}
			}
		}
	}
	in.routes.Store(next)
	failures := []error{}
	for _, each := range ours {
		if each.Status.ObservedGeneration != each.Generation || !ready(each.Status.Conditions) {
			failures = append(failures, in.sayReady(ctx, each))
		}
	}
	return errors.Join(failures...)
}

func ready(conditions []metav1.Condition) bool {
	return slices.ContainsFunc(conditions, func(c metav1.Condition) bool { return c.Type == "Ready" && c.Status == "True" })
}

func (in *ingress) sayReady(ctx context.Context, of knativeIngress) error {
	conditions := []any{}
	for _, kind := range []string{"LoadBalancerReady", "NetworkConfigured", "Ready"} {
		conditions = append(conditions, map[string]any{"type": kind, "status": "True", "lastTransitionTime": time.Now().UTC().Format(time.RFC3339)})
	}
	status := maps.Clone(in.status)
	status["observedGeneration"], status["conditions"] = of.Generation, conditions
	patch, err := json.Marshal(map[string]any{"status": status})
	if err == nil {
		_, err = in.client.Resource(ingressResource).Namespace(of.Namespace).Patch(ctx, of.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	}
	return err
}

func (in *ingress) handler(of func(*routes) map[string][]path) http.HandlerFunc {
	return func(w http.ResponseWriter, request *http.Request) {
		host := strings.ToLower(request.Host)
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		paths := of(in.routes.Load())[host]
		at := slices.IndexFunc(paths, func(p path) bool { return p.matches(request) })
		if at < 0 || len(paths[at].Splits) == 0 {
			http.Error(w, "no route for "+host, http.StatusNotFound)
			return
		}
		to, target := paths[at], paths[at].choose()
		// Else Go's server may close a request's body while its answer is still copied, and the
		// answer is cut. HTTP/2 has it always, and says so by an error.
		_ = http.NewResponseController(w).EnableFullDuplex()
		if request.ContentLength > 0 && request.ContentLength <= replayableLength {
			body, err := io.ReadAll(request.Body)
			if err != nil {
				return // the client has gone
			}
			request.Body = io.NopCloser(bytes.NewReader(body))
			request.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
		}
		proxy := httputil.ReverseProxy{
			FlushInterval: -1, // drains are answered line by line
			Transport:     toService{in, target},
			Rewrite: func(r *httputil.ProxyRequest) {
				r.SetXForwarded()
				r.Out.URL.Scheme = "http"
				if to.RewriteHost != "" {
					r.Out.Host = to.RewriteHost
				}
				for _, headers := range []map[string]string{to.AppendHeaders, target.AppendHeaders} {
					for name, value := range headers {
						r.Out.Header.Set(name, value)
					}
				}
			},
			ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
				if r.Context().Err() == nil {
					log.Printf("%s%s: %v", host, r.URL.Path, err)
				}
				w.WriteHeader(http.StatusBadGateway)
			},
		}
		proxy.ServeHTTP(w, request)
	}
}

func (p path) matches(request *http.Request) bool {
	for name, want := range p.Headers {
		if request.Header.Get(name) != want.Exact {
			return false
		}
	}
	return strings.HasPrefix(request.URL.Path, p.Path)
}

func (p path) choose() split {
	at := rand.IntN(100)
	for _, each := range p.Splits {
		if at -= each.Percent; at < 0 {
			return each
		}
	}
	return p.Splits[0] // a single one may leave its percentage out
}

// toService sends a request to one of a Service's endpoints, and to another if that one can't be dialled.
type toService struct {
	in     *ingress
	target split
}

func (to toService) RoundTrip(request *http.Request) (*http.Response, error) {
	body := request.Body
	for attempt := 1; ; attempt++ {
		address, http2, err := to.endpoint(request.Context())
		if err != nil {
			return nil, err
		}
		out := request.Clone(request.Context())
		out.URL.Host = address
		if body != nil {
			out.Body = io.NopCloser(body) // the transport closes what it couldn't send
		}
		transport := to.in.http1
		if http2 {
			transport = to.in.http2
		}
		response, err := transport.RoundTrip(out)
		var failed *net.OpError
		if err == nil || attempt == dialAttempts || !errors.As(err, &failed) || failed.Op != "dial" {
			return response, err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (to toService) endpoint(ctx context.Context) (address string, http2 bool, err error) {
	for until := time.Now().Add(noEndpoints); ; time.Sleep(20 * time.Millisecond) {
		service, err := to.in.services.Services(to.target.ServiceNamespace).Get(to.target.ServiceName)
		if err == nil {
			if addresses, http2 := to.addresses(service); len(addresses) > 0 {
				return addresses[rand.IntN(len(addresses))], http2, nil
			}
		}
		if ctx.Err() != nil {
			return "", false, ctx.Err()
		}
		if time.Now().After(until) {
			return "", false, errors.New("no endpoints of " + to.target.ServiceNamespace + "/" + to.target.ServiceName)
		}
	}
}

func (to toService) addresses(service *corev1.Service) (found []string, http2 bool) {
	// A route to another route: a Knative Service's own name leads here again, by another host.
	if service.Spec.Type == corev1.ServiceTypeExternalName && service.Spec.ExternalName == to.in.domain {
		return []string{to.in.private}, false
	}
	at := slices.IndexFunc(service.Spec.Ports, func(p corev1.ServicePort) bool {
		return p.Name == to.target.ServicePort.String() || strconv.Itoa(int(p.Port)) == to.target.ServicePort.String()
	})
	endpoints, err := to.in.endpoints.Endpoints(service.Namespace).Get(service.Name)
	if at < 0 || err != nil {
		return nil, false
	}
	name := service.Spec.Ports[at].Name
	for _, subset := range endpoints.Subsets {
		for _, port := range subset.Ports {
			for _, each := range subset.Addresses {
				if port.Name == name {
					found = append(found, net.JoinHostPort(each.IP, strconv.Itoa(int(port.Port))))
				}
			}
		}
	}
	return found, name == "http2" || name == "h2c"
}
