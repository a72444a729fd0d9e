// A double of CoreDNS, for a machine that can't get it: it answers the names of services and of the pods behind them as
// a cluster's DNS does, from the API, and asks the servers of /etc/resolv.conf for all others. It takes no Corefile
// and has no plugins; readiness and health are at the ports that kubeadm's Deployment probes.
package main

import (
	"log"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
)

const (
	domain = "cluster.local."
	ttl    = 5
)

type server struct {
	services  listers.ServiceLister
	endpoints listers.EndpointsLister
	upstream  []string

	mutex  sync.Mutex
	silent time.Time
}

// addresses of a service, or of one pod of a service without an address of its own. known: there is such a name.
func (s *server) addresses(words []string) (found []string, known bool) {
	if len(words) < 3 || words[len(words)-1] != "svc" {
		return nil, len(words) > 0 && words[len(words)-1] == "svc"
	}
	name, namespace, pod := words[len(words)-3], words[len(words)-2], strings.Join(words[:len(words)-3], ".")
	service, err := s.services.Services(namespace).Get(name)
	if err != nil {
		return nil, false
	}
	if service.Spec.ClusterIP != v1.ClusterIPNone {
		if pod != "" {
			return nil, false
		}
		return []string{service.Spec.ClusterIP}, true
	}
	endpoints, err := s.endpoints.Endpoints(namespace).Get(name)
	if err != nil {
		return nil, pod == ""
	}
	for _, subset := range endpoints.Subsets {
		all := subset.Addresses
		if service.Spec.PublishNotReadyAddresses {
			all = append(append([]v1.EndpointAddress{}, all...), subset.NotReadyAddresses...)
		}
		for _, address := range all {
			if pod == "" || pod == address.Hostname || pod == strings.ReplaceAll(address.IP, ".", "-") {
				found = append(found, address.IP)
			}
		}
	}
	return found, pod == "" || len(found) > 0
}

// pointer is the name of the service or of the pod that has an address.
func (s *server) pointer(reverse string) string {
	parts := strings.Split(strings.TrimSuffix(reverse, ".in-addr.arpa."), ".")
	for i, j := 0, len(parts)-1; i < j; i, j = i+1, j-1 {
		parts[i], parts[j] = parts[j], parts[i]
	}
	address := strings.Join(parts, ".")
	services, _ := s.services.List(labels.Everything())
	for _, service := range services {
		if service.Spec.ClusterIP == address {
			return service.Name + "." + service.Namespace + ".svc." + domain
		}
	}
	endpoints, _ := s.endpoints.List(labels.Everything())
	for _, one := range endpoints {
		for _, subset := range one.Subsets {
			for _, found := range subset.Addresses {
				if found.IP == address && found.Hostname != "" {
					return found.Hostname + "." + one.Name + "." + one.Namespace + ".svc." + domain
				}
			}
		}
	}
	return ""
}

func (s *server) ServeDNS(out dns.ResponseWriter, asked *dns.Msg) {
	answer := new(dns.Msg)
	answer.SetReply(asked)
	answer.Authoritative = true
	question := asked.Question[0]
	name := strings.ToLower(question.Name)
	header := dns.RR_Header{Name: question.Name, Rrtype: question.Qtype, Class: dns.ClassINET, Ttl: ttl}
	switch {
	case dns.IsSubDomain(domain, name):
		inner := strings.TrimSuffix(strings.TrimSuffix(name, domain), ".")
		found, known := s.addresses(strings.Split(inner, "."))
		if !known {
			answer.Rcode = dns.RcodeNameError
		} else if question.Qtype == dns.TypeA {
			for _, address := range found {
				answer.Answer = append(answer.Answer, &dns.A{Hdr: header, A: net.ParseIP(address)})
			}
		}
	case question.Qtype == dns.TypePTR && s.pointer(name) != "":
		answer.Answer = []dns.RR{&dns.PTR{Hdr: header, Ptr: s.pointer(name)}}
	default:
		answer = s.forward(asked, out.RemoteAddr().Network())
	}
	_ = out.WriteMsg(answer)
}

// forward asks the other servers. Where none answers, as on a machine without a network, none is asked again for a while:
// a resolver tries each name in each domain of its list.
func (s *server) forward(asked *dns.Msg, network string) *dns.Msg {
	s.mutex.Lock()
	silent := time.Now().Before(s.silent)
	s.mutex.Unlock()
	for _, upstream := range s.upstream {
		client := dns.Client{Net: network, Timeout: time.Second}
		if silent {
			break
		}
		if answer, _, err := client.Exchange(asked, upstream); err == nil {
			return answer
		}
	}
	if !silent {
		s.mutex.Lock()
		s.silent = time.Now().Add(30 * time.Second)
		s.mutex.Unlock()
	}
	failed := new(dns.Msg)
	return failed.SetRcode(asked, dns.RcodeServerFailure)
}

func serve(port int, handler http.Handler) {
	log.Fatal(http.ListenAndServe(":"+strconv.Itoa(port), handler))
}

func main() {
	config, err := rest.InClusterConfig()
	if err != nil {
		log.Fatal(err)
	}
	factory := informers.NewSharedInformerFactory(kubernetes.NewForConfigOrDie(config), 0)
	s := &server{services: factory.Core().V1().Services().Lister(), endpoints: factory.Core().V1().Endpoints().Lister()}
	if resolver, err := dns.ClientConfigFromFile("/etc/resolv.conf"); err == nil {
		for _, address := range resolver.Servers {
			s.upstream = append(s.upstream, net.JoinHostPort(address, resolver.Port))
		}
	}
	well := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	go serve(8080, well)
	go serve(9153, well)
	never := make(chan struct{})
	factory.Start(never)
	factory.WaitForCacheSync(never)
	for _, network := range []string{"udp", "tcp"} {
		listener := &dns.Server{Addr: ":53", Net: network, Handler: s}
		go func() { log.Fatal(listener.ListenAndServe()) }()
	}
	serve(8181, well)
}
